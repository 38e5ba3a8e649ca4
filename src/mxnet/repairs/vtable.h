// A part of cpu_workspaces.

#pragma once

#include <cstddef>
#include <vector>

namespace gluon_syncbn::mxnet {

/// A virtual function of another library, and the function that replaces it.
struct VirtualFunction {
  const char* name;         ///< the exported name of the original
  const char* replacement;  ///< the exported name of `function`
  void* function;
};

/// Returns the address of `name` in `library`, a handle of dlopen. Throws Error if there is none.
void* find_symbol(void* library, const char* name);

/// Replaces the first virtual functions of the class whose table is exported as `vtable`. Does
/// nothing if another copy of this library has done so. Throws Error, and replaces none, if an
/// entry of the table is neither the original nor the replacement.
void replace_virtual_functions(void* library, const char* vtable,
                               const std::vector<VirtualFunction>& functions);

}  // namespace gluon_syncbn::mxnet

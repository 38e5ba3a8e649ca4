#ifndef GLUON_SYNCBN_MXNET_VTABLE_H_
#define GLUON_SYNCBN_MXNET_VTABLE_H_

#include <cstddef>
#include <vector>

namespace gluon_syncbn::mxnet {

/// A virtual function of a class that another library exports.
struct VirtualFunction {
  const char* name;         ///< under which the library exports it
  const char* replacement;  ///< the name of what takes its place, exported by this library
  void* function;           ///< what takes its place
};

/// The address of `name` in `library`, a handle of dlopen. Throws Error where there is none.
void* find_symbol(void* library, const char* name);

/// Replaces the first functions of the class whose table is exported as `vtable`, unless another
/// copy of this library has done so. Throws Error, and replaces none, if one of them is not what
/// `library` exports under its name.
void replace_virtual_functions(void* library, const char* vtable,
                               const std::vector<VirtualFunction>& functions);

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_VTABLE_H_

#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace gluon_syncbn::cuda {

/// A kernel for NVRTC: the C++ type of its body (kernels/body.h), and how the host lays it out.
struct KernelSource {
  std::string body;  ///< such as "gluon_syncbn::cuda::PerChannel<...>"
  std::string name;  ///< of the function, which profilers show
  std::size_t bytes;
  std::size_t alignment;

  /// The program that NVRTC compiles.
  std::string text() const;
};

/// The architecture to compile for, for a GPU of this compute capability, such as 86. This is
/// "sm_86", or a lower one of the same generation that NVRTC knows. If NVRTC knows only earlier
/// generations, it is "compute_" and the last one: PTX, which the driver compiles. Throws Error if
/// there is no NVRTC, or if it compiles for no GPU as old as this one.
std::string architecture_for(int capability);

/// Machine code or PTX of a program, from NVRTC. Errors call it `name`. Throws Error.
std::string compile(const std::string& text, const std::string& name,
                    const std::string& architecture);

/// Machine code or PTX of a kernel, from the folder of compiled kernels or from NVRTC. Throws
/// Error.
std::string code_of(const KernelSource& kernel, const std::string& architecture);

/// The names and texts of the kernels' headers, which CMake puts into the library
/// (cmake/kernels.cmake). Never destroyed, because a thread may compile while the process ends.
const std::vector<std::pair<const char*, const char*>>& kernel_headers();

}  // namespace gluon_syncbn::cuda

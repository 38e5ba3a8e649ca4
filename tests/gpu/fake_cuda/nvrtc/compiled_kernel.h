#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace fake_cuda {

/// A kernel that MXNet had compiled at run time, in the shared library that nvrtc.cc made of it.
struct CompiledKernel {
  std::size_t arguments;
  const std::size_t* bytes;  ///< of each argument
  void (*run)(dim3 grid, dim3 block, void** arguments);
};

/// The name of the library's only symbol, a CompiledKernel.
constexpr const char* kCompiledKernel = "fake_cuda_compiled_kernel";

}  // namespace fake_cuda

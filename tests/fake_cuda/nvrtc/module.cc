// The driver's calls that load and launch what nvrtc.cc compiled.

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstring>
#include <vector>

#include "control.h"
#include "nvrtc/compiled_kernel.h"
#include "runtime/call.h"

using fake_cuda::call;
using fake_cuda::CompiledKernel;
using fake_cuda::current_device;
using fake_cuda::device;
using fake_cuda::Needs;

extern "C" {

cudaError_t cuDeviceGet(int* ordinal, int wanted) {
  return call("cuDeviceGet", Needs::kDriver, [=] {
    if (!fake_cuda::exists(wanted)) return cudaErrorInvalidDevice;
    *ordinal = wanted;
    return cudaSuccess;
  });
}

cudaError_t cuDevicePrimaryCtxRetain(void** context, int ordinal) {
  return call("cuDevicePrimaryCtxRetain", Needs::kDriver, [=] {
    *context = &device(ordinal);
    return device(ordinal).make_context();
  });
}

/// A module is the library itself.
cudaError_t cuModuleLoadDataEx(void** module, const char* code, unsigned, void*, void*) {
  return call("cuModuleLoadDataEx", Needs::kContext, [=] {
    *module = dlopen(code, RTLD_NOW | RTLD_LOCAL);
    if (!*module) fake_cuda::die(dlerror());
    device(current_device()).load(*module);
    return cudaSuccess;
  });
}

cudaError_t cuModuleGetFunction(const void** function, void* module, const char* name) {
  return call("cuModuleGetFunction", Needs::kContext, [=] {
    *function = dlsym(module, name);
    return *function ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cuLaunchKernel(const CompiledKernel* kernel, unsigned grid_x, unsigned grid_y,
                           unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                           unsigned, cudaStream_t stream, void** given, void**) {
  return call("cuLaunchKernel", Needs::kContext, [=] {
    std::vector<std::vector<char>> values;
    for (std::size_t i = 0; i < kernel->arguments; ++i) {
      const auto* const begin = static_cast<const char*>(given[i]);
      values.emplace_back(begin, begin + kernel->bytes[i]);
    }
    return fake_cuda::put_kernel(stream, [=, grid = dim3{grid_x, grid_y, grid_z},
                                          block = dim3{block_x, block_y, block_z}]() mutable {
      std::vector<void*> arguments;
      for (auto& value : values) arguments.push_back(value.data());
      kernel->run(grid, block, arguments.data());
    });
  });
}

}  // extern "C"

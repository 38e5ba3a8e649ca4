// MXNet's kernels, which are known by their names: what its compiler put there to register and to
// launch them.

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "control.h"
#include "kernels/forms.h"
#include "runtime/call.h"

namespace fake_cuda {
namespace {

/// There are tens of thousands of functions, of which few are launched.
struct Function {
  const char* mangled = nullptr;
  std::optional<Name> name{};
};
struct Functions {
  std::mutex mutex;
  std::map<const void*, Function> all;
};
Functions& functions() {
  static Functions& the = *new Functions;
  return the;
}

/// What the kernel does with its arguments, which are read at once.
Task task_of(const void* function, void** arguments) {
  const std::lock_guard<std::mutex> lock(functions().mutex);
  Function& found = functions().all.at(function);
  if (!found.name) found.name = parse_name(found.mangled);
  const Launch launch{*found.name, arguments};
  for (const auto form : {sgd, elementwise, expression, random, split, all_finite}) {
    if (Task task = form(launch)) return task;
  }
  die("MXNet's kernel is not imitated: " + readable(found.mangled));
}

/// Between the two calls that a launch compiles to.
struct Configuration {
  dim3 grid, block;
  std::size_t shared = 0;
  cudaStream_t stream = nullptr;
};
std::vector<Configuration>& configurations() {
  static thread_local std::vector<Configuration> all;
  return all;
}

}  // namespace
}  // namespace fake_cuda

using fake_cuda::configurations;

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*,
                            void*, void*, void*, int*) {
  const std::lock_guard<std::mutex> lock(fake_cuda::functions().mutex);
  fake_cuda::functions().all[function].mangled = name;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared,
                                     cudaStream_t stream) {
  configurations().push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  const auto last = configurations().back();
  configurations().pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared = last.shared;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, std::size_t,
                             cudaStream_t stream) {
  return fake_cuda::call("cudaLaunchKernel", fake_cuda::Needs::kContext, [=] {
    return fake_cuda::put_kernel(stream, fake_cuda::task_of(function, arguments));
  });
}

// The same from CUDA 13 on, whose compiler may have compiled Horovod.

cudaError_t __cudaGetKernel(const void** kernel, const void* function) {
  *kernel = function;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

}  // extern "C"

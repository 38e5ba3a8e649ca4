// Kernels: those of libraries by name, those of tests as functions.

#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "call.h"
#include "die.h"
#include "fake_cuda.h"
#include "kernels/kernel.h"
#include "memory.h"
#include "settings.h"

using fake_cuda::call;
using fake_cuda::current_device;
using fake_cuda::Device;
using fake_cuda::Needs;
using fake_cuda::put;
using fake_cuda::settings;

namespace {

/// Arguments of a kernel, and what it finds where it reads a peer's memory in vain.
struct Arguments {
  std::vector<char> bytes;
  std::vector<std::vector<char>> shadows;
  bool legal = true;
};

/// Looks for addresses among the arguments, as a GPU meets them when it uses them.
Arguments reachable_by(Device* device, const void* given, std::size_t bytes) {
  Arguments arguments;
  arguments.bytes.assign(static_cast<const char*>(given), static_cast<const char*>(given) + bytes);
  for (std::size_t at = 0; at + sizeof(char*) <= bytes; at += sizeof(char*)) {
    char* address = nullptr;
    std::memcpy(&address, arguments.bytes.data() + at, sizeof address);
    const auto found = fake_cuda::find(address);
    if (!found || found->ordinal < 0 || found->ordinal == device->ordinal()) continue;
    if (!device->reaches(found->ordinal)) arguments.legal = false;
    if (settings().peers != 2) continue;
    arguments.shadows.emplace_back(found->bytes, static_cast<char>(fake_cuda::kFresh));
    char* shadow = arguments.shadows.back().data() + (address - found->begin);
    std::memcpy(arguments.bytes.data() + at, &shadow, sizeof shadow);
  }
  return arguments;
}

struct Names {
  std::mutex mutex;
  std::map<const void*, const char*> of_functions;
};
Names& names() {
  static Names& all = *new Names;
  return all;
}
const char* name_of(const void* function) {
  const std::lock_guard<std::mutex> lock(names().mutex);
  const auto found = names().of_functions.find(function);
  if (found == names().of_functions.end()) fake_cuda::die("a kernel that nobody registered");
  return found->second;
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

extern "C" {

cudaError_t fakeCudaLaunch(const char*, const void* given, size_t bytes,
                           void (*run)(const void* arguments, long blocks), long blocks,
                           cudaStream_t stream) {
  return call("cudaLaunchKernel", Needs::kContext, [=] {
    cudaError_t status = cudaSuccess;
    const auto of_handle = fake_cuda::stream_of(stream, &status);
    if (status != cudaSuccess) return status;
    Device* device = &fake_cuda::device_of(of_handle);
    // A kernel starts on a stream of the thread's device only.
    if (device->ordinal() != current_device()) return cudaErrorInvalidResourceHandle;
    return put(stream, {"kernel", [=, arguments = reachable_by(device, given, bytes)] {
                          if (!arguments.legal) return device->break_with(cudaErrorIllegalAddress);
                          run(arguments.bytes.data(), blocks);
                        }});
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  return call("cudaFuncGetAttributes", Needs::kContext, [=] {
    std::memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   size_t, unsigned) {
  return call("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", Needs::kContext, [=] {
    *blocks = 2;
    return cudaSuccess;
  });
}

// What the compiler puts into programs that have kernels.

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*,
                            void*, void*, void*, int*) {
  const std::lock_guard<std::mutex> lock(names().mutex);
  names().of_functions[function] = name;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  configurations().push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const Configuration last = configurations().back();
  configurations().pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared = last.shared;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t,
                             cudaStream_t stream) {
  return call("cudaLaunchKernel", Needs::kContext, [=] {
    cudaError_t status = cudaSuccess;
    const auto of_handle = fake_cuda::stream_of(stream, &status);
    if (status != cudaSuccess) return status;
    if (fake_cuda::device_of(of_handle).ordinal() != current_device()) {
      return cudaErrorInvalidResourceHandle;
    }
    return put(stream, {"kernel", fake_cuda::kernel(name_of(function), grid, block, arguments)});
  });
}

// The same from CUDA 13 on.

cudaError_t __cudaGetKernel(const void** kernel, const void* function) {
  *kernel = function;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

}  // extern "C"

// Kernels of tests.

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "control.h"
#include "fake_cuda.h"
#include "memory.h"
#include "runtime/call.h"

using fake_cuda::Device;

namespace {

/// Arguments of a kernel, and what it finds where it reads a peer's memory in vain.
struct Arguments {
  std::vector<char> bytes;
  std::vector<std::vector<char>> shadows;
  bool legal = true;
  bool hangs = false;
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
    if (fake_cuda::settings().peers == 3) arguments.hangs = true;
    if (fake_cuda::settings().peers != 2) continue;
    arguments.shadows.emplace_back(found->bytes, static_cast<char>(fake_cuda::kFresh));
    char* shadow = arguments.shadows.back().data() + (address - found->begin);
    std::memcpy(arguments.bytes.data() + at, &shadow, sizeof shadow);
  }
  return arguments;
}

}  // namespace

extern "C" cudaError_t fakeCudaLaunch(const void* given, std::size_t bytes,
                                      void (*run)(const void* arguments, long blocks), long blocks,
                                      cudaStream_t stream) {
  return fake_cuda::call("cudaLaunchKernel", fake_cuda::Needs::kContext, [=] {
    Device* const device = fake_cuda::device_of(stream);
    device->load(reinterpret_cast<const void*>(run));
    return fake_cuda::put_kernel(stream, [=, arguments = reachable_by(device, given, bytes)] {
      if (!arguments.legal) return device->break_with(cudaErrorIllegalAddress);
      while (arguments.hangs && fake_cuda::settings().peers == 3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      run(arguments.bytes.data(), blocks);
    });
  });
}

extern "C" cudaError_t fakeCudaLoad(void (*run)(const void* arguments, long blocks)) {
  return fake_cuda::call("cudaFuncGetAttributes", fake_cuda::Needs::kContext, [=] {
    fake_cuda::device(fake_cuda::current_device()).load(reinterpret_cast<const void*>(run));
    return cudaSuccess;
  });
}

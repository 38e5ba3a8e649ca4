// Modules and launches: kernels of gluon_syncbn, which the lockstep of the native tests runs, those
// that nvrtc/nvrtc.cc has compiled for MXNet, and those of tests.

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "control.h"
#include "driver/call.h"
#include "emulated_kernel.h"
#include "errors.h"
#include "fake_cuda.h"
#include "memory.h"
#include "nvrtc/compiled_kernel.h"
#include "ptx/kernel.h"

using fake_cuda::Device;
using fake_cuda::in_context;
using fake_cuda::thread_context;

namespace {

/// Whether the device reaches all addresses among the arguments, as a GPU meets them when it uses
/// them.
bool reaches_all(Device* device, const std::vector<char>& arguments) {
  for (std::size_t at = 0; at + sizeof(char*) <= arguments.size(); at += sizeof(char*)) {
    char* address = nullptr;
    std::memcpy(&address, arguments.data() + at, sizeof address);
    const auto found = fake_cuda::find(address);
    if (found && found->ordinal >= 0 && !device->reaches(found->ordinal)) return false;
  }
  return true;
}

cudaError_t put_with_addresses(cudaStream_t stream, std::vector<char> given,
                               std::function<void(const void* arguments)> run) {
  Device* const device = fake_cuda::device_of(stream);
  const bool is_legal = reaches_all(device, given);
  return fake_cuda::put_kernel(stream, [=, arguments = std::move(given)] {
    if (!is_legal) return device->break_with(cudaErrorIllegalAddress);
    run(arguments.data());
  });
}

std::vector<char> bytes_of(const void* begin, std::size_t bytes) {
  const auto* const at = static_cast<const char*>(begin);
  return {at, at + bytes};
}

/// MXNet 2 may have set only the device of the thread (MXNET_ENGINE_TYPE=ThreadedEngine). It is not
/// known whether the driver takes a thread without a context.
void enter_chosen_device() {
  Device& chosen = fake_cuda::device(fake_cuda::chosen_device());
  if (!thread_context() && chosen.make_context() == cudaSuccess) thread_context() = &chosen;
}

/// Owns modules and functions, which are never unloaded: a program may drop its pointers to them.
template <class Loaded>
Loaded* keep(Loaded loaded) {
  static std::mutex& mutex = *new std::mutex;
  static auto& all = *new std::deque<Loaded>;
  const std::lock_guard<std::mutex> lock(mutex);
  return &all.emplace_back(std::move(loaded));
}

}  // namespace

struct CUmod_st {
  std::string kernel;       // for an emulated kernel, its function and the type of its body
  void* library = nullptr;  // for a compiled kernel
  std::shared_ptr<fake_cuda::ptx::Kernel> ptx{};  // for a kernel that the real NVRTC has compiled
};
struct CUfunc_st {
  bool is_of_mxnet;
  std::function<cudaError_t(dim3 grid, dim3 block, cudaStream_t stream, void** arguments)> launch;
};

namespace {

/// A kernel of gluon_syncbn, whose only argument is its body.
CUfunc_st* function_with_body(
    std::size_t bytes, unsigned threads, void (*clear_padding)(void* body),
    const std::function<void(const void* body, long blocks, fake_cuda::Order)>& run) {
  return keep<CUfunc_st>(
      {false, [=](dim3 grid, dim3 block, cudaStream_t stream, void** given) {
         if (block.x != threads) return cudaErrorInvalidValue;
         std::vector<char> body = bytes_of(given[0], bytes);
         clear_padding(body.data());
         const auto order = static_cast<fake_cuda::Order>(fake_cuda::settings().order.load());
         return put_with_addresses(stream, std::move(body),
                                   [=](const void* arguments) { run(arguments, grid.x, order); });
       }});
}

}  // namespace

extern "C" {

cudaError_t cuModuleLoadDataEx(CUmod_st** module, const char* code, unsigned number,
                               const int* options, void** values) {
  constexpr int kErrorLog = 5;
  constexpr int kErrorLogBytes = 6;
  const bool is_emulated =
      std::strncmp(code, fake_cuda::kEmulated, std::strlen(fake_cuda::kEmulated)) == 0;
  const bool is_ptx = !is_emulated && fake_cuda::ptx::is_ptx(code);
  if (!is_emulated && !is_ptx) enter_chosen_device();
  const cudaError_t status = in_context("cuModuleLoadData", [=] {
    fake_cuda::wait_in_driver(thread_context());
    if (is_emulated) {
      *module = keep<CUmod_st>({code + std::strlen(fake_cuda::kEmulated), nullptr});
    } else if (is_ptx) {
      auto kernel = std::make_shared<fake_cuda::ptx::Kernel>(fake_cuda::ptx::parse(code));
      *module = keep<CUmod_st>({"", nullptr, std::move(kernel)});
    } else {
      *module = keep<CUmod_st>({"", dlopen(code, RTLD_NOW | RTLD_LOCAL)});
      if (!(*module)->library) fake_cuda::die(dlerror());
    }
    return cudaSuccess;
  });
  char* log = nullptr;
  std::size_t bytes = 0;
  for (unsigned i = 0; i < number; ++i) {
    if (options[i] == kErrorLog) log = static_cast<char*>(values[i]);
    if (options[i] == kErrorLogBytes) bytes = reinterpret_cast<std::size_t>(values[i]);
  }
  if (log && status != cudaSuccess) {
    std::snprintf(log, bytes, "the fake driver's log: %s\n", fake_cuda::describe(status).text);
  }
  return status;
}

cudaError_t cuModuleGetFunction(CUfunc_st** function, CUmod_st* module, const char* name) {
  if (module->library) enter_chosen_device();
  return in_context("cuModuleGetFunction", [=] {
    if (module->library) {
      const auto* const kernel =
          static_cast<const fake_cuda::CompiledKernel*>(dlsym(module->library, name));
      if (!kernel) return cudaErrorInvalidValue;
      *function =
          keep<CUfunc_st>({true, [=](dim3 grid, dim3 block, cudaStream_t stream, void** given) {
                             std::vector<std::vector<char>> values;
                             for (std::size_t i = 0; i < kernel->arguments; ++i) {
                               values.push_back(bytes_of(given[i], kernel->bytes[i]));
                             }
                             return fake_cuda::put_kernel(stream, [=]() mutable {
                               std::vector<void*> arguments;
                               for (auto& value : values) arguments.push_back(value.data());
                               kernel->run(grid, block, arguments.data());
                             });
                           }});
      return cudaSuccess;
    }
    if (const auto kernel = module->ptx) {
      if (kernel->name != name) return cudaErrorInvalidValue;
      *function = function_with_body(
          kernel->parameter_bytes, kernel->threads, [](void*) {},
          [=](const void* body, long blocks, fake_cuda::Order order) {
            fake_cuda::ptx::run(*kernel, body, blocks, order);
          });
      return cudaSuccess;
    }
    const std::string prefix = std::string(name) + " ";
    if (module->kernel.rfind(prefix, 0) != 0) return cudaErrorInvalidValue;
    const auto* const kernel = fake_cuda::emulated_kernel(module->kernel.substr(prefix.size()));
    *function =
        function_with_body(kernel->bytes, kernel->threads, kernel->clear_padding, kernel->run);
    return cudaSuccess;
  });
}

cudaError_t cuFuncLoad(CUfunc_st*) {
  return in_context("cuFuncLoad", [] {
    fake_cuda::wait_in_driver(thread_context());
    return cudaSuccess;
  });
}

cudaError_t cuLaunchKernel(CUfunc_st* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned,
                           cudaStream_t stream, void** arguments, void**) {
  if (function->is_of_mxnet) enter_chosen_device();
  return in_context("cuLaunchKernel", [=] {
    return function->launch({grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, stream,
                            arguments);
  });
}

cudaError_t fakeCudaLaunch(const void* arguments, std::size_t bytes,
                           void (*run)(const void* arguments), cudaStream_t stream) {
  return in_context("cuLaunchKernel",
                    [=] { return put_with_addresses(stream, bytes_of(arguments, bytes), run); });
}

}  // extern "C"

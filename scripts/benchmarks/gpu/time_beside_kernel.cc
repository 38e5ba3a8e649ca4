// Which calls of CUDA return while a kernel of another stream runs on the same GPU, and which wait
// for its end. "time_beside_kernel small" only shows that the program runs.

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>

#include "cuda/compiler.h"
#include "cuda/driver.h"
#include "cuda/kernel.h"
#include "cuda/kernels/merge_devices.h"
#include "cuda/kernels/thread_per_channel.h"
#include "timing.h"

namespace gluon_syncbn::tests {
namespace {

using Clock = std::chrono::steady_clock;

/// The argument of the kernel that runs beside the calls.
struct Spin {
  volatile int* flags;  ///< the first says that the kernel runs, the second that it may end
  unsigned long long nanoseconds;  ///< after which it ends in any case
};
constexpr const char* kSpin = R"(
struct Spin { volatile int* flags; unsigned long long nanoseconds; };
extern "C" __global__ void spin(Spin spin) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  spin.flags[0] = 1;
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (!spin.flags[1] && now - begin < spin.nanoseconds);
}
)";
void spin_on_fake(const void* arguments) {
  const auto& spin = *static_cast<const Spin*>(arguments);
  const auto end = Clock::now() + std::chrono::nanoseconds(spin.nanoseconds);
  spin.flags[0] = 1;
  while (!spin.flags[1] && Clock::now() < end) std::this_thread::yield();
}

CUfunc_st* function_of(const std::string& code, const char* name) {
  CUmod_st* module = nullptr;
  CUfunc_st* function = nullptr;
  cuda::check(cuda::driver().load_module(&module, code.c_str(), 0, nullptr, nullptr), name, 0);
  cuda::check(cuda::driver().function(&function, module, name), name, 0);
  return function;
}

class Rig {
 public:
  explicit Rig(bool small) {
    spin_.flags = static_cast<volatile int*>(flags_.data());
    spin_.nanoseconds = small ? 20'000'000 : 1'000'000'000;
    if (!launch_on_fake_) {
      spin_kernel_ = function_of(cuda::compile(kSpin, "spin", architecture_), "spin");
    }
  }

  void run() {
    using Body = cuda::PerChannel<cuda::CountBatch<double>>;
    const cuda::KernelSource& source = cuda::Kernel::of<Body>().source();
    const std::string code = cuda::code_of(source, architecture_);
    const cuda::Memory number(cuda::Memory::Place::kDevice, 0, sizeof(double));
    Body body{{{nullptr, nullptr, 0, static_cast<double*>(number.data())}}, 1};
    void* arguments[] = {&body};
    const cuda::Driver& driver = cuda::driver();
    std::printf("| call | us | while a kernel runs |\n| --- | --- | --- |\n");
    for (const bool loads : {false, true}) {
      if (loads && !driver.load_function) break;
      CUmod_st* module = nullptr;
      CUfunc_st* function = nullptr;
      time("cuModuleLoadDataEx",
           [&] { return driver.load_module(&module, code.c_str(), 0, nullptr, nullptr); });
      time("cuModuleGetFunction",
           [&] { return driver.function(&function, module, source.name.c_str()); });
      if (loads) time("cuFuncLoad", [&] { return driver.load_function(function); });
      time(loads ? "cuLaunchKernel after cuFuncLoad" : "cuLaunchKernel, the first", [&] {
        return driver.launch(function, 1, 1, 1, Body::kBlockThreads, 1, 1, 0, own_.handle(),
                             arguments, nullptr);
      });
    }
    cuda::Address memory = 0;
    void* on_host = nullptr;
    time("cuMemAlloc", [&] { return driver.allocate(&memory, 1 << 20); });
    time("cuMemHostAlloc", [&] {
      return driver.allocate_host(&on_host, 1 << 20, cuda::kPortable | cuda::kDeviceMap);
    });
    time("cuMemsetD8Async", [&] { return driver.fill(memory, 0, 1 << 20, own_.handle()); });
    time("cuStreamSynchronize of the calls' stream",
         [&] { return driver.synchronize(own_.handle()); });
    driver.free(memory);
    driver.free_host(on_host);
  }

 private:
  using LaunchOnFake = int(const void* arguments, std::size_t bytes, void (*run)(const void*),
                           CUstream_st* stream);

  template <class Call>
  void time(const char* name, const Call& call) {
    spin_.flags[0] = spin_.flags[1] = 0;
    void* arguments[] = {&spin_};
    cuda::check(launch_on_fake_
                    ? launch_on_fake_(&spin_, sizeof spin_, spin_on_fake, other_.handle())
                    : cuda::driver().launch(spin_kernel_, 1, 1, 1, 1, 1, 1, 0, other_.handle(),
                                            arguments, nullptr),
                "spin", 0);
    end_.record(&other_);
    while (!spin_.flags[0] && !end_.is_reached()) std::this_thread::yield();
    const auto begin = Clock::now();
    cuda::check(call(), name, 0);
    const std::chrono::duration<double, std::micro> duration = Clock::now() - begin;
    const bool has_waited = end_.is_reached();
    spin_.flags[1] = 1;
    other_.synchronize();
    std::printf("| %s | %.1f | %s |\n", name, duration.count(),
                has_waited ? "waits for its end" : "returns");
  }

  const cuda::OnDevice on_device_{0};
  const std::string architecture_ = cuda::architecture_for(cuda::compute_capability(0));
  LaunchOnFake* const launch_on_fake_ = of_driver<LaunchOnFake>("fakeCudaLaunch");
  CUfunc_st* spin_kernel_ = nullptr;  // null on the fake CUDA, which does not compile it
  cuda::Stream own_{0};
  cuda::Stream other_{0};
  cuda::Event end_{0};
  const cuda::Memory flags_{cuda::Memory::Place::kHost, 0, 2 * sizeof(int)};
  Spin spin_{};
};

}  // namespace
}  // namespace gluon_syncbn::tests

int main(int count, char** words) {
  using namespace gluon_syncbn;
  try {
    tests::require_gpu();
    tests::Rig(count == 2 && words[1] == std::string("small")).run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "time_beside_kernel: %s\n", error.what());
    return 1;
  }
}

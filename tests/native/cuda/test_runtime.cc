// src/cuda/runtime.cc on the fake CUDA: what it leaves of GPUs, threads and errors for everybody
// else in the process.

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/check.h"
#include "cuda/fake_cuda_control.h"
#include "cuda/gpu.h"
#include "cuda/kernels/per_channel.h"
#include "cuda/runtime.h"
#include "cuda/thread_context.h"
#include "support/ranks.h"
#include "support/step.h"

namespace gluon_syncbn::tests {
namespace {

// Of no other test, which there are fewer GPUs for.
constexpr int kGpu = 10;
constexpr int kOther = 11;
constexpr int kMissing = 99;
constexpr int kIndex = 300;

/// A function of the CUDA runtime that MXNet is linked to. The tests call that of the library.
template <class Function>
Function* of_host(Function* /*its type*/, const char* name) {
  void* const runtime = dlopen("libcudart.so.11.0", RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(runtime != nullptr);
  return reinterpret_cast<Function*>(dlsym(runtime, name));
}
#define OF_HOST(function) of_host(function, #function)

/// Both as a new process would find them, and without faults. MXNet has an error of its own on this
/// thread, which stays.
class FreshGpus {
 public:
  FreshGpus() : devices_("DEVICES", 12) {
    reset();
    CHECK(OF_HOST(cudaSetDevice)(kMissing) == cudaErrorInvalidDevice);
  }
  ~FreshGpus() {
    CHECK(OF_HOST(cudaGetLastError)() == cudaErrorInvalidDevice);
    reset();
  }
  FreshGpus(const FreshGpus&) = delete;
  FreshGpus& operator=(const FreshGpus&) = delete;

 private:
  static void reset() {
    fakeCudaClearFaults();
    for (const int gpu : {kGpu, kOther}) fakeCudaReset(gpu);
    cudaGetLastError();
  }

  const Setting devices_;
};

void on_new_thread(const std::function<void()>& task) { std::thread(task).join(); }

/// How often the library has called something that works in the context of a GPU.
long calls_on(int gpu) {
  long calls = 0;
  for (const char* name :
       {"cudaMalloc", "cudaHostAlloc", "cudaFree", "cudaFreeHost", "cudaMemGetInfo",
        "cudaStreamCreateWithPriority", "cudaStreamDestroy", "cudaStreamSynchronize",
        "cudaEventCreateWithFlags", "cudaEventDestroy", "cudaEventRecord", "cudaEventQuery",
        "cudaMemcpyAsync", "cudaMemsetAsync", "cudaLaunchKernel", "cudaDeviceEnablePeerAccess"}) {
    calls += fakeCudaCount(name, gpu);
  }
  return calls;
}

/// Everything that a GPU context does, but for kernels.
void use(int index, int ordinal) {
  cuda::Gpu gpu(index, ordinal);
  const auto memory = gpu.memory(100);
  const auto on_host = gpu.host_memory(100);
  const auto message = gpu.message(100);
  gpu.stream()->zero(memory->data(), memory->bytes());
  gpu.stream()->copy(on_host->data(), memory->data(), memory->bytes());
  message.written->record(gpu.stream());
  Finishes finishes;
  gpu.when_done(finishes.one());
  CHECK(finishes.wait(1) == std::vector<std::string>{""});
  {
    const cuda::OnDevice on_device(ordinal);
    gpu.wait_for(*message.written);
  }
  gpu.stream()->synchronize();
}

/// Kernels of two GPUs that wait for each other, as those of NCCL. MXNet launches these under a
/// lock, which its allocations take too.
class Collective {
 public:
  /// Of each GPU: so many streams have two kernels each, of which the second waits for the first.
  explicit Collective(std::size_t streams = 1) : arrived_(2 * streams) {}

  /// Launches all, and does `between` after those of the first GPU. Returns whether they have met.
  template <class Between>
  bool run(const Between& between) {
    std::deque<cuda::Stream> first;
    std::deque<cuda::Stream> second;
    for (std::size_t i = 0; i < arrived_.size() / 2; ++i) {
      first.emplace_back(kGpu);
      second.emplace_back(kOther);
    }
    const auto launch_all = [this](const std::deque<cuda::Stream>& streams) {
      const cuda::OnDevice on_device(streams.front().ordinal());
      for (std::size_t i = 0; i < arrived_.size(); ++i) {
        const Arguments arguments{this, i};
        REQUIRE(fakeCudaLaunch(&arguments, sizeof arguments, kernel, 1, streams[i / 2].handle()) ==
                cudaSuccess);
      }
    };
    for (const int gpu : {kGpu, kOther}) {
      const cuda::OnDevice on_device(gpu);
      REQUIRE(fakeCudaLoad(kernel) == cudaSuccess);
    }
    std::unique_lock<std::mutex> lock(mutex_);
    launch_all(first);
    between();
    launch_all(second);
    lock.unlock();
    std::unique_lock<std::mutex> meeting(meeting_);
    both_.wait(meeting, [this] { return ended_ == 2 * arrived_.size(); });
    return have_met_;
  }
  std::mutex& mutex() { return mutex_; }

 private:
  struct Arguments {
    Collective* self;
    std::size_t number;
  };

  static void kernel(const void* given, long) {
    const auto [self, number] = *static_cast<const Arguments*>(given);
    std::unique_lock<std::mutex> lock(self->meeting_);
    int& arrived = self->arrived_[number];
    ++arrived;
    self->both_.notify_all();
    const auto all = [&] { return arrived == 2 || !self->have_met_; };
    if (!self->both_.wait_for(lock, std::chrono::seconds(5), all)) self->have_met_ = false;
    ++self->ended_;
    self->both_.notify_all();
  }

  std::mutex mutex_;
  std::mutex meeting_;
  std::condition_variable both_;
  std::vector<int> arrived_;
  std::size_t ended_ = 0;
  bool have_met_ = true;
};

/// Waits until `call` is made, if another thread makes it soon.
void wait_for_call(const char* call, long before) {
  for (int i = 0; i < 50 && fakeCudaCount(call, -1) == before; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

std::mutex* lender_mutex = nullptr;

std::shared_ptr<void> lend_under_lock(cuda::Memory::Place place, int, std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(*lender_mutex);
  const auto memory = std::make_shared<cuda::Memory>(place, kGpu, bytes);
  return {memory, memory->data()};
}

/// The message of the error that `task` throws. Clears the thread's last error.
template <class Task>
std::string error_of(const Task& task) {
  std::string message;
  try {
    task();
  } catch (const Error& error) {
    message = error.what();
  }
  CHECK(cudaPeekAtLastError() == cudaSuccess);
  return message;
}

}  // namespace

TEST_CASE("cuda runtime: to ask for GPUs makes no context") {
  const FreshGpus fresh;
  CHECK(cuda::device_count() == 12);
  CHECK(contains(cuda::describe_devices(), "fake GPU 11 (sm_80)"));
  CHECK_FALSE(fakeCudaHasContext(kGpu));
  fakeCudaInject("cudaGetDeviceProperties#12");
  CHECK(contains(cuda::describe_devices(), ", one that does not answer (unknown error)"));
  CHECK(cudaPeekAtLastError() == cudaSuccess);
}

TEST_CASE("cuda runtime: a thread works on the GPU of its context alone, and keeps its own") {
  for (const long version : {11020, 12000}) {
    const FreshGpus fresh;
    const Setting of_version("VERSION", version);
    const long on_first = calls_on(0);
    on_new_thread([] {
      use(kIndex, kGpu);
      CHECK(cuda::thread_context() == nullptr);
    });
    CHECK(calls_on(0) == on_first);
    CHECK(fakeCudaHasContext(kGpu));
    CHECK_FALSE(fakeCudaHasContext(kOther));
    on_new_thread([] {
      cudaSetDevice(kOther);
      cudaFree(nullptr);  // which makes the context
      void* const before = cuda::thread_context();
      use(kIndex, kGpu);
      CHECK(cuda::thread_context() == before);
      int gpu = -1;
      CHECK(cudaGetDevice(&gpu) == cudaSuccess);
      CHECK(gpu == kOther);
    });
  }
}

TEST_CASE("cuda runtime: MXNet's runtime keeps its last error and its device") {
  for (const long version : {11020, 12000}) {
    const FreshGpus fresh;
    const Setting of_version("VERSION", version);
    for (const bool makes_context : {false, true}) {
      on_new_thread([=] {
        const bool is_the_same = OF_HOST(cudaSetDevice) == &cudaSetDevice;
        CHECK_FALSE(is_the_same);
        CHECK(OF_HOST(cudaSetDevice)(kOther) == cudaSuccess);
        if (makes_context) CHECK(OF_HOST(cudaFree)(nullptr) == cudaSuccess);
        CHECK(OF_HOST(cudaSetDevice)(kMissing) == cudaErrorInvalidDevice);
        void* const context = cuda::thread_context();

        use(kIndex, kGpu);
        const Faults refused("cudaMalloc#1");
        CHECK(contains(error_of([] { cuda::Memory(cuda::Memory::Place::kDevice, kGpu, 64); }),
                       "out of memory"));

        CHECK(cuda::thread_context() == context);
        int gpu = -1;
        CHECK(OF_HOST(cudaGetDevice)(&gpu) == cudaSuccess);
        CHECK(gpu == kOther);
        CHECK(OF_HOST(cudaGetLastError)() == cudaErrorInvalidDevice);
        CHECK(OF_HOST(cudaGetLastError)() == cudaSuccess);
      });
    }
  }
}

TEST_CASE("cuda runtime: MXNet may send a thread to another GPU at any time") {
  const FreshGpus fresh;
  on_new_thread([] {
    for (const int mine : {kOther, kGpu}) {
      CHECK(OF_HOST(cudaSetDevice)(mine) == cudaSuccess);
      CHECK(OF_HOST(cudaFree)(nullptr) == cudaSuccess);
      use(kIndex, kGpu);
      int gpu = -1;
      CHECK(OF_HOST(cudaGetDevice)(&gpu) == cudaSuccess);
      CHECK(gpu == mine);
    }
  });
}

TEST_CASE("cuda runtime: a context's thread that MXNet has sent elsewhere works on its own GPU") {
  const FreshGpus fresh;
  const ShareGpus share;
  constexpr int kFirst = 370;  // on GPU 10 of 12; no other test uses this context and the next one
  constexpr int kElsewhere = 9;
  Layer layer({{"gpu", 2}}, 49, kFirst);
  CHECK(layer.step() == no_errors(4));
  for (const int index : {kFirst, kFirst + 1}) {
    cuda::Gpu::of(index).post([] { CHECK(OF_HOST(cudaSetDevice)(kElsewhere) == cudaSuccess); });
  }
  const Faults elsewhere("cudaEventQuery@0;cudaEventQuery@9");
  CHECK(layer.step() == no_errors(4));
}

TEST_CASE("cuda runtime: a thread that is on the right GPU is not sent there again") {
  const FreshGpus fresh;
  on_new_thread([] {
    const cuda::Stream stream(kGpu);
    cudaSetDevice(kGpu);
    cudaFree(nullptr);
    const auto changes = [] {
      return fakeCudaCount("cudaSetDevice", -1) + fakeCudaCount("cuCtxSetCurrent", -1);
    };
    const long before = changes();
    use(kIndex, kGpu);
    // By the thread of its own, which has none, at its begin and at its end.
    CHECK(changes() - before == 2);
  });
}

TEST_CASE("cuda runtime: a GPU that cannot be had is an error, and the thread keeps its own") {
  const FreshGpus fresh;
  const Setting version("VERSION", 12000);
  on_new_thread([] {
    cudaSetDevice(kOther);
    fakeCudaInject("context@10");
    CHECK(contains(error_of([] { use(kIndex, kGpu); }),
                   "CUDA: cudaSetDevice on gpu(10) failed: all CUDA-capable devices are busy"));
    int gpu = -1;
    CHECK(cudaGetDevice(&gpu) == cudaSuccess);
    CHECK(gpu == kOther);
  });
}

TEST_CASE("cuda runtime: pinned memory comes under the lock of the host program") {
  const FreshGpus fresh;
  cuda::Gpu gpu(kIndex, kGpu);
  Collective collective;
  lender_mutex = &collective.mutex();
  cuda::set_lender(lend_under_lock);
  const long before = fakeCudaCount("cudaHostAlloc", -1);
  std::thread allocates;
  const bool have_met = collective.run([&] {
    allocates = std::thread([&] { CHECK(gpu.host_memory(1000)->data() != nullptr); });
    wait_for_call("cudaHostAlloc", before);
  });
  CHECK(have_met);
  allocates.join();
  cuda::set_lender(nullptr);
}

TEST_CASE("cuda runtime: no kernel is loaded at its first launch, which would wait for others") {
  const FreshGpus fresh;
  cuda::Gpu gpu(kIndex, kGpu);
  const auto numbers = gpu.memory(2);
  auto* const values = static_cast<double*>(numbers->data());
  Collective collective;
  const long before = fakeCudaCount("cudaLaunchKernel", -1) + 1;
  std::thread launches;
  const bool have_met = collective.run([&] {
    launches = std::thread([&] {
      const cuda::PerChannel<cuda::ReadNumbers> body{{values, values + 1}, 1};
      launch(body, body.blocks(), gpu.stream());
    });
    wait_for_call("cudaLaunchKernel", before);
  });
  CHECK(have_met);
  launches.join();
  gpu.stream()->synchronize();
}

TEST_CASE("cuda runtime: kernels of NCCL in all hardware queues keep no round waiting for ever") {
  const FreshGpus fresh;
  const ShareGpus share;
  constexpr int kFirst = 382;  // on GPU 10 of 12; no other test uses this context and the next one
  Layer layer({{"gpu", 2}}, 49, kFirst);
  CHECK(layer.step() == no_errors(4));
  Finishes finishes;
  Collective collective(8);
  const bool have_met = collective.run([&] {
    const long before = fakeCudaCount("cudaEventQuery", -1);
    for (const std::size_t i : {0, 1}) layer.forward(i, &finishes);
    wait_for_call("cudaEventQuery", before);
  });
  CHECK(have_met);
  CHECK(finishes.wait(2) == no_errors(2));
}

TEST_CASE("cuda runtime: a context is there while another one loads its kernels") {
  const FreshGpus fresh;
  const ShareGpus share;
  constexpr int kLoading =
      394;  // on GPU 10 of 12; no other test uses this context and the next one
  cuda::Gpu& there = cuda::Gpu::of(kLoading + 1);
  fakeCudaSet("LOST", kGpu);
  const long before = fakeCudaCount("cudaFuncGetAttributes", kGpu);
  std::thread loads([] { cuda::Gpu::of(kLoading); });
  wait_for_call("cudaFuncGetAttributes", before);
  std::promise<cuda::Gpu*> found;
  std::thread asks([&] { found.set_value(&cuda::Gpu::of(kLoading + 1)); });
  auto future = found.get_future();
  const bool is_found = future.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  CHECK(is_found);
  fakeCudaSet("LOST", -1);
  CHECK(future.get() == &there);
  loads.join();
  asks.join();
}

TEST_CASE("cuda runtime: a GPU reaches another's memory from the time when they meet") {
  const FreshGpus fresh;
  cuda::Gpu owner(kIndex, kGpu);
  cuda::Gpu reader(kIndex + 1, kOther);
  const long before = fakeCudaCount("cudaDeviceEnablePeerAccess", -1);
  SUBCASE("once") {
    for (int i = 0; i < 3; ++i) CHECK(reader.reads(&owner));
    CHECK(fakeCudaCount("cudaDeviceEnablePeerAccess", -1) == before + 1);
    CHECK(fakeCudaCount("cudaDeviceEnablePeerAccess", kOther) >= 1);
  }
  SUBCASE("also where MXNet was there first") {
    cuda::enable_reading(kOther, kGpu);
    CHECK(reader.reads(&owner));
    CHECK(fakeCudaCount("cudaDeviceEnablePeerAccess", -1) == before + 2);
  }
  SUBCASE("not where CUDA promised too much") {
    fakeCudaInject("cudaDeviceEnablePeerAccess");
    for (int i = 0; i < 3; ++i) CHECK_FALSE(reader.reads(&owner));
    CHECK(fakeCudaCount("cudaDeviceEnablePeerAccess", -1) == before + 1);
  }
  CHECK(cudaPeekAtLastError() == cudaSuccess);
}

TEST_CASE("cuda runtime: what fails is the error of its call, and of no later one") {
  const FreshGpus fresh;
  cuda::Stream stream(kGpu);
  cuda::Event event(kGpu);
  cuda::Memory memory(cuda::Memory::Place::kDevice, kGpu, 64);
  using cuda::Memory;
  const auto on_gpu = [](const std::function<void()>& call) {
    return [call] {
      const cuda::OnDevice on_device(kGpu);
      call();
    };
  };
  const std::vector<std::pair<std::string, std::function<void()>>> calls{
      {"cudaMalloc", [] { Memory(Memory::Place::kDevice, kGpu, 64); }},
      {"cudaHostAlloc", [] { Memory(Memory::Place::kHost, kGpu, 64); }},
      {"cudaDeviceGetStreamPriorityRange", [] { cuda::Stream(kGpu).ordinal(); }},
      {"cudaStreamCreateWithPriority", [] { cuda::Stream(kGpu).ordinal(); }},
      {"cudaEventCreateWithFlags", [] { const cuda::Event made(kGpu); }},
      {"cudaEventRecord", [&] { event.record(&stream); }},
      {"cudaStreamSynchronize", [&] { stream.synchronize(); }},
      {"cudaEventQuery", on_gpu([&] { event.is_reached(); })},
      {"cudaMemsetAsync", [&] { stream.zero(memory.data(), 64); }},
      {"cudaMemcpyAsync", [&] { stream.copy(memory.data(), memory.data(), 64); }},
      {"cudaLaunchKernel",
       [&] {
         auto* numbers = static_cast<double*>(memory.data());
         const cuda::PerChannel<cuda::ReadNumbers> body{{numbers, numbers}, 1};
         launch(body, 1, &stream);
       }},
  };
  for (const auto& [name, call] : calls) {
    CAPTURE(name);
    fakeCudaInject((name + "@10").c_str());
    const std::string error = error_of(call);
    CHECK(contains(error, "CUDA: "));
    CHECK(contains(error, " on gpu(10) failed: "));
    CHECK(fakeCudaClearFaults() == 1);
    // The call neither reports nor clears an error that an earlier call has left.
    CHECK(cudaSetDevice(1000) == cudaErrorInvalidDevice);
    CHECK_NOTHROW(call());
    CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  }
}

TEST_CASE("cuda runtime: an error of the selected GPU is not that of an event on another one") {
  const FreshGpus fresh;
  cuda::Stream stream(kGpu);
  cuda::Event event(kGpu);
  event.record(&stream);
  stream.synchronize();
  const cuda::Stream other(kOther);
  const cuda::OnDevice on_other(kOther);
  const Faults broken("cudaEventQuery@" + std::to_string(kOther) + "=719");
  CHECK(event.is_reached());
  CHECK(event.is_reached());
}

TEST_CASE("cuda runtime: what cannot be released leaves no error") {
  const FreshGpus fresh;
  fakeCudaInject("cudaFree@10;cudaFreeHost@10;cudaStreamDestroy@10");
  {
    const cuda::Memory memory(cuda::Memory::Place::kDevice, kGpu, 64);
    const cuda::Memory on_host(cuda::Memory::Place::kHost, kGpu, 64);
    const cuda::Stream stream(kGpu);
  }
  CHECK(fakeCudaClearFaults() == 3);
  CHECK(cudaPeekAtLastError() == cudaSuccess);
}

TEST_CASE("cuda runtime: streams may end while the process exits, as those of MXNet do") {
  struct OfProcess {
    cudaStream_t stream = nullptr;
    ~OfProcess() { cudaStreamDestroy(stream); }
  };
  // Its destructor runs after the thread_local variables of the main thread are gone.
  static OfProcess kept;
  CHECK(cudaStreamCreateWithPriority(&kept.stream, cudaStreamNonBlocking, 0) == cudaSuccess);
}

TEST_CASE("cuda runtime: out of memory is an error with the sizes, once nothing is kept") {
  const FreshGpus fresh;
  const Setting small("MEMORY", 1);
  cuda::Gpu gpu(kIndex, kGpu);
  constexpr std::size_t kHalf = 1 << 16;  // of the memory, in doubles
  gpu.memory(kHalf);                      // and back again
  gpu.memory(kHalf / 2);
  {
    const auto most = gpu.memory(kHalf + 1);  // which takes all there is
    CHECK(most->bytes() == 1 << 20);
    const std::string error = error_of([&] { gpu.memory(kHalf); });
    CHECK(contains(error,
                   "CUDA: allocation of 524288 bytes on gpu(10) failed: out of memory "
                   "(cudaErrorMemoryAllocation); 0 of 1048576 bytes are free"));
  }
  CHECK_NOTHROW(gpu.memory(kHalf));
  fakeCudaInject("cudaHostAlloc#1+");
  CHECK(contains(error_of([&] { gpu.host_memory(kHalf); }),
                 "CUDA: allocation of 524288 bytes of pinned host memory on gpu(10) failed: "));
}

}  // namespace gluon_syncbn::tests

// src/cuda/runtime.cc on the fake CUDA: what it leaves of GPUs and threads for everybody else in
// the process.

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
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "cuda/fake_cuda_control.h"
#include "cuda/gpu.h"
#include "cuda/kernel.h"
#include "cuda/kernels/merge_devices.h"
#include "cuda/kernels/thread_per_channel.h"
#include "cuda/runtime.h"
#include "support/captured_errors.h"
#include "support/ranks.h"
#include "support/step.h"

namespace gluon_syncbn::tests {
namespace {

// Of no other test, which there are fewer GPUs for.
constexpr int kGpu = 10;
constexpr int kOther = 11;
constexpr int kIndex = 300;

/// More GPUs than other tests have, in order and without faults.
class FreshGpus {
 public:
  FreshGpus() { fakeCudaClearFaults(); }
  ~FreshGpus() { fakeCudaClearFaults(); }
  FreshGpus(const FreshGpus&) = delete;
  FreshGpus& operator=(const FreshGpus&) = delete;

 private:
  const Setting devices_{"DEVICES", 12};
};

/// Gives the calling thread the context of a GPU, as MXNet does.
void select(int gpu) {
  CUctx_st* context = nullptr;
  REQUIRE(cuda::driver().retain_context(&context, gpu) == 0);
  REQUIRE(cuda::driver().set_context(context) == 0);
}
CUctx_st* thread_context() {
  CUctx_st* context = nullptr;
  CHECK(cuda::driver().context(&context) == 0);
  return context;
}

void on_new_thread(const std::function<void()>& task) { std::thread(task).join(); }

/// Everything that a GPU context does, but for kernels.
void use(int index, int ordinal) {
  cuda::Gpu gpu(index, ordinal);
  const auto memory = gpu.memory(100);
  const auto on_host = gpu.host_memory(100);
  const auto event = gpu.event();
  gpu.stream()->zero(memory->data(), memory->bytes());
  gpu.stream()->copy(on_host->data(), memory->data(), memory->bytes());
  event->record(gpu.stream());
  Finishes finishes;
  gpu.when_reached(event, finishes.one());
  gpu.when_done(finishes.one());
  CHECK(finishes.wait(2) == no_errors(2));
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
        REQUIRE(fakeCudaLaunch(&arguments, sizeof arguments, kernel, streams[i / 2].handle()) ==
                cudaSuccess);
      }
    };
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

  static void kernel(const void* given) {
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

/// A kernel.
cuda::PerChannel<cuda::CountBatch<double>> count_batch(double* number) {
  return {{{nullptr, nullptr, 0, number}}, 1};
}

}  // namespace

TEST_CASE("cuda runtime: to ask for GPUs makes no context") {
  const FreshGpus fresh;
  const Setting more("DEVICES", 14);  // of which no test uses the last
  CHECK(cuda::device_count() == 14);
  CHECK(contains(cuda::describe_devices(), "fake GPU 13 (sm_80)"));
  CHECK_FALSE(fakeCudaHasContext(13));
  fakeCudaInject("cuDeviceGetName#14");
  CHECK(contains(cuda::describe_devices(),
                 ", one that does not answer (CUDA: cuDeviceGetName on gpu(13) failed: unknown "
                 "error (CUDA_ERROR_UNKNOWN))"));
}

TEST_CASE("cuda runtime: a thread works on the GPU of its context alone, and keeps its own") {
  const FreshGpus fresh;
  on_new_thread([] {
    const Faults elsewhere(
        "cuMemAlloc@0;cuMemHostAlloc@0;cuStreamCreateWithPriority@0;cuEventCreate@0;"
        "cuEventRecord@0;cuMemsetD8Async@0;cuMemcpyAsync@0;cuEventQuery@0");
    use(kIndex, kGpu);
    CHECK(thread_context() == nullptr);
  });
  on_new_thread([] {
    // MXNet may send a thread to another GPU at any time.
    for (const int mine : {kOther, kGpu}) {
      select(mine);
      CUctx_st* const before = thread_context();
      use(kIndex, kGpu);
      CHECK(thread_context() == before);
      const Faults refused("cuMemAlloc#1");
      CHECK(contains(error_of([] { cuda::Memory(cuda::Memory::Place::kDevice, kGpu, 64); }),
                     "out of memory"));
      CHECK(thread_context() == before);
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
    cuda::Gpu::of(index).post([] { select(kElsewhere); });
  }
  const Faults elsewhere("cuEventQuery@0;cuEventQuery@9");
  CHECK(layer.step() == no_errors(4));
}

TEST_CASE("cuda runtime: a GPU that cannot be had is an error, and the thread keeps its own") {
  const FreshGpus fresh;
  const Setting more("DEVICES", 13);  // of which no other test uses the last
  on_new_thread([] {
    select(kOther);
    CUctx_st* const before = thread_context();
    const Faults busy("context@12");
    CHECK(contains(error_of([] { use(kIndex, 12); }),
                   "CUDA: cuDevicePrimaryCtxRetain on gpu(12) failed: all CUDA-capable devices "
                   "are busy"));
    CHECK(thread_context() == before);
  });
}

TEST_CASE("cuda runtime: pinned memory comes under the lock of the host program") {
  const FreshGpus fresh;
  cuda::Gpu gpu(kIndex, kGpu);
  Collective collective;
  lender_mutex = &collective.mutex();
  cuda::set_lender(lend_under_lock);
  const long before = fakeCudaCount("cuMemHostAlloc", -1);
  std::thread allocates;
  const bool have_met = collective.run([&] {
    allocates = std::thread([&] { CHECK(gpu.host_memory(1000)->data() != nullptr); });
    wait_for_call("cuMemHostAlloc", before);
  });
  CHECK(have_met);
  allocates.join();
  cuda::set_lender(nullptr);
}

TEST_CASE("cuda runtime: the first launch of a loaded kernel waits for no other kernel") {
  const FreshGpus fresh;
  cuda::Gpu gpu(kIndex, kGpu);
  const auto numbers = gpu.memory(2);
  const auto body = count_batch(static_cast<double*>(numbers->data()));
  cuda::Kernel::of<std::decay_t<decltype(body)>>().load(kGpu);
  Collective collective;
  const long before = fakeCudaCount("cuLaunchKernel", -1) + 1;
  std::thread launches;
  const bool have_met = collective.run([&] {
    launches = std::thread([&] { cuda::Launcher{gpu.stream(), {}}.launch(body); });
    wait_for_call("cuLaunchKernel", before);
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
    const long before = fakeCudaCount("cuEventQuery", -1);
    for (const std::size_t i : {0, 1}) layer.forward(i, &finishes);
    wait_for_call("cuEventQuery", before);
  });
  CHECK(have_met);
  CHECK(finishes.wait(2) == no_errors(2));
}

TEST_CASE("cuda runtime: a context is there while another one loads its kernels") {
  const FreshGpus fresh;
  const ShareGpus share;
  const Setting more("DEVICES", 15);  // of which no other test uses the last
  constexpr int kLoading = 389;       // on GPU 14 of 15
  cuda::Gpu& there = cuda::Gpu::of(kLoading + 1);
  {
    const cuda::Stream keeps_the_load_waiting(14);
  }
  fakeCudaSet("LOST", 14);
  const long before = fakeCudaCount("cuModuleLoadData", -1);
  std::thread loads([] { cuda::Gpu::of(kLoading); });
  wait_for_call("cuModuleLoadData", before);
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
      {"cuMemAlloc", [] { Memory(Memory::Place::kDevice, kGpu, 64); }},
      {"cuMemHostAlloc", [] { Memory(Memory::Place::kHost, kGpu, 64); }},
      {"cuCtxGetStreamPriorityRange", [] { cuda::Stream(kGpu).ordinal(); }},
      {"cuStreamCreateWithPriority", [] { cuda::Stream(kGpu).ordinal(); }},
      {"cuEventCreate", [] { const cuda::Event made(kGpu); }},
      {"cuEventRecord", [&] { event.record(&stream); }},
      {"cuStreamSynchronize", [&] { stream.synchronize(); }},
      {"cuEventQuery", on_gpu([&] { event.is_reached(); })},
      {"cuMemsetD8Async", [&] { stream.zero(memory.data(), 64); }},
      {"cuMemcpyAsync", [&] { stream.copy(memory.data(), memory.data(), 64); }},
      {"cuLaunchKernel",
       [&] {
         cuda::Launcher{&stream, {}}.launch(count_batch(static_cast<double*>(memory.data())));
       }},
  };
  for (const auto& [name, call] : calls) {
    CAPTURE(name);
    fakeCudaInject((name + "@10").c_str());
    const std::string error = error_of(call);
    CHECK(contains(error, "CUDA: "));
    CHECK(contains(error, " on gpu(10) failed: "));
    CHECK(fakeCudaClearFaults() == 1);
    CHECK_NOTHROW(call());
  }
}

TEST_CASE("cuda runtime: what cannot be released leaves no error") {
  const FreshGpus fresh;
  fakeCudaInject("cuMemFree@10;cuMemFreeHost@10;cuStreamDestroy@10");
  {
    const cuda::Memory memory(cuda::Memory::Place::kDevice, kGpu, 64);
    const cuda::Memory on_host(cuda::Memory::Place::kHost, kGpu, 64);
    const cuda::Stream stream(kGpu);
  }
  CHECK(fakeCudaClearFaults() == 3);
}

TEST_CASE("cuda runtime: streams may end while the process exits, as those of MXNet do") {
  struct OfProcess {
    std::unique_ptr<cuda::Stream> stream;
  };
  // Its destructor runs after the thread_local variables of the main thread are gone.
  static OfProcess kept;
  kept.stream = std::make_unique<cuda::Stream>(0);
}

TEST_CASE("cuda runtime: out of memory is an error with the sizes, once nothing is kept") {
  const FreshGpus fresh;
  const Setting more("DEVICES", 16);
  const Setting small("MEMORY", 1);
  cuda::Gpu gpu(kIndex, 15);              // which no other test uses
  constexpr std::size_t kHalf = 1 << 16;  // of the memory, in doubles
  gpu.memory(kHalf);                      // and back again
  gpu.memory(kHalf / 2);
  {
    const auto most = gpu.memory(2 * kHalf);  // which takes all there is
    CHECK(most->bytes() == 1 << 20);
    const std::string error = error_of([&] { gpu.memory(kHalf); });
    CHECK(contains(error,
                   "CUDA: allocation of 524288 bytes on gpu(15) failed: out of memory "
                   "(CUDA_ERROR_OUT_OF_MEMORY); 0 of 1048576 bytes are free"));
  }
  CHECK_NOTHROW(gpu.memory(kHalf));
  fakeCudaInject("cuMemHostAlloc#1+");
  CHECK(contains(error_of([&] { gpu.host_memory(kHalf); }),
                 "CUDA: allocation of 524288 bytes of pinned host memory on gpu(15) failed: "));
}

}  // namespace gluon_syncbn::tests

// What is true of GPU contexts alone: calls of CUDA, peers, lost GPUs, memory that others lend.
// backend/test_passes.cc has what is true of all contexts.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/error.h"
#include "cuda/backend.h"
#include "cuda/gpu.h"
#include "cuda/needs_gpu.h"
#include "support/ranks.h"
#include "support/step.h"

namespace gluon_syncbn::tests {
namespace {

#ifdef GLUON_SYNCBN_FAKE_CUDA
/// That so many calls have failed, all because a kernel or a copy did.
void check_faults(const std::vector<std::string>& errors, std::size_t number) {
  REQUIRE(errors.size() == number);
  for (const auto& error : errors) CHECK(contains(error, "an illegal memory access"));
}

bool has_one_gpu() {
  const char* number = std::getenv("FAKE_CUDA_DEVICES");
  return number && std::string(number) == "1";
}

int borrowed = 0;

/// Memory that needs no call of the driver, which waits for kernels.
std::shared_ptr<void> lend(cuda::Memory::Place, int, std::size_t bytes) {
  ++borrowed;
  return {::operator new(bytes), [](void* memory) { ::operator delete(memory); }};
}

/// Puts a kernel on the stream of a context, which runs until it is released.
void keep_busy(int index, const std::shared_future<void>* released) {
  cuda::Stream* const stream = cuda::Gpu::of(index).stream();
  const cuda::OnDevice on_device(stream->ordinal());
  const auto wait = [](const void* given) {
    (*static_cast<const std::shared_future<void>* const*>(given))->wait();
  };
  REQUIRE(fakeCudaLaunch(&released, sizeof released, wait, stream->handle()) == cudaSuccess);
}
#endif

}  // namespace

TEST_CASE("cuda backend: a context that the machine has not is an error with the GPUs it has") {
  // Not one that another test has made, where contexts may share GPUs.
  const int missing = 1000;
  CHECK_THROWS_WITH(cuda::backend_of(missing, "layer 'a'"),
                    doctest::Contains("layer 'a': there is no gpu(1000); GPUs that CUDA finds: "));
}

#ifdef GLUON_SYNCBN_FAKE_CUDA

TEST_CASE("cuda backend: steps allocate nothing once there was one like them") {
  const ShareGpus share;
  Layer layer({{"gpu", 4}}, 5000);
  for (const bool in_place : {false, true}) {
    for (const auto& shard : layer.shards) shard->in_place = in_place;
    layer.step();
    layer.step();
    const long before = allocations();
    for (int i = 0; i < 10; ++i) CHECK(layer.step() == no_errors(8));
    CHECK(allocations() == before);
  }
}

namespace {

/// How often the thread of a context has made a call.
long calls_on_thread_of(int context, const char* call) {
  std::promise<long> number;
  cuda::Gpu::of(context).when_done([&](auto&) { number.set_value(fakeCudaCountHere(call)); });
  return number.get_future().get();
}

/// Without a function, fused with one, and in place.
const std::pair<ActType, bool> kKinds[]{
    {ActType::kNone, false}, {ActType::kRelu, false}, {ActType::kElu, true}};

}  // namespace

// The figures of docs/internals/gpu.md.
TEST_CASE("cuda backend: what a round asks of CUDA, and on which thread") {
  const ShareGpus share;
  const auto count = [](const std::string& call) { return fakeCudaCount(call.c_str(), -1); };
  for (const std::size_t number : {1u, 2u, 4u, 8u}) {
    const auto devices = static_cast<int>(number);
    // One chunk, and several, in both tilings.
    for (const Layout& layout :
         {Layout{2, 5, 49}, Layout{60, 64, 1}, Layout{1, 3, 12000}, Layout{1000, 64, 1}}) {
      const bool has_chunks = layout.count() > 100;
      for (const auto& [type, in_place] : kKinds) {
        CAPTURE(number);
        CAPTURE(layout.outer);
        CAPTURE(layout.inner);
        Layer layer({{"gpu", number}}, std::vector<Layout>(number, layout));
        layer.for_each([&, act = type, in = in_place](auto* shard) {
          shard->activation = {act, act == ActType::kRelu ? 0 : 0.5};
          shard->in_place = in;
        });
        layer.shards[0]->momentum.reset();  // one kernel more counts the batches
        layer.step();
        const auto on_threads = [&](const char* call) {
          std::vector<long> calls;
          for (int i = 0; i < devices; ++i) calls.push_back(calls_on_thread_of(i, call));
          return calls;
        };
        const auto launched_before = on_threads("cuLaunchKernel");
        const long launched = count("cuLaunchKernel");
        const long records = count("cuEventRecord");
        const long changes = count("cuCtxSetCurrent");
        const long questions = count("cuEventQuery");
        const long copied = copies();
        CHECK(layer.step() == no_errors(2 * number));
        CHECK(count("cuLaunchKernel") - launched == (has_chunks ? 8 : 6) * devices + 1);
        CHECK(count("cuEventRecord") - records == 4 * devices);
        CHECK(copies() == copied);
        // To and fro for the sum, and for the outputs of a device alone; fewer where contexts share
        // GPUs.
        CHECK(count("cuCtxSetCurrent") - changes <= 4 * devices + (devices == 1 ? 4 : 0));
        // In each direction for its own sums and outputs, at least once each.
        CHECK(count("cuEventQuery") - questions >= (devices == 1 ? 2 : 4 * devices));
        CHECK(count("cuEventQuery of another GPU") == 0);
        // Merge and outputs, in each direction, and the count.
        const auto by_threads = on_threads("cuLaunchKernel");
        for (std::size_t i = 0; i < number; ++i) {
          CHECK(by_threads[i] - launched_before[i] == (devices == 1 ? 0 : i == 0 ? 5 : 4));
        }
      }
    }
  }
}

TEST_CASE("cuda backend: a lost device is an error of all after the timeout, no hang" *
          doctest::skip(has_one_gpu())) {
  const ShareGpus share;
  constexpr int kFirst = 150;  // contexts of their own
  Layer layer({{"gpu", 3}}, 49, kFirst);
  CHECK(layer.step() == no_errors(6));
  const ScopedTimeout timeout(0.2);
  // An allocation of pinned memory may wait for all GPUs, so the peers have some already.
  for (const int context : {kFirst, kFirst + 2}) {
    const auto first = cuda::Gpu::of(context).host_memory(10);
    const auto second = cuda::Gpu::of(context).host_memory(10);
  }
  Finishes finishes;
  {
    const Setting lost("LOST", layer.shards[1]->ordinal());
    for (const std::size_t rank : {0, 1, 2}) layer.forward(rank, &finishes);
    for (const auto& error : finishes.wait(2)) {
      CHECK(contains(error, "gpu(151) has not finished its sums in 0.2 s"));
    }
    // Their threads and streams go on.
    for (const int context : {kFirst, kFirst + 2}) {
      CHECK(Layer({{"gpu", 1}}, 49, context).step() == no_errors(2));
    }
  }
  CHECK(contains(finishes.wait(3).back(), "gpu(151) has not finished its sums in 0.2 s"));
  CHECK(layer.step() == no_errors(6));
}

TEST_CASE("cuda backend: a device that fails midway keeps its peers' messages until it is done" *
          doctest::skip(has_one_gpu())) {
  const ShareGpus share;
  constexpr int kFirst = 110;  // contexts of their own, whose pools are empty
  Layer layer({{"gpu", 2}}, 49, kFirst);
  const int ordinal = layer.shards[1]->ordinal();
  // After the moments, the kernel below and the merge comes the output.
  const Faults fault("cuLaunchKernel@" + std::to_string(ordinal) + "#4");
  std::promise<void> release;
  const auto released = release.get_future().share();
  Finishes finishes;
  std::vector<std::pair<At, PassPtr>> begun;
  for (const std::size_t i : {0, 1}) {
    const At round = layer.join(i);
    begun.emplace_back(round, layer.shards[i]->forward_pass(finishes.one()));
  }
  keep_busy(kFirst + 1, &released);
  for (const std::size_t i : {0, 1})
    begun[i].first.arrive(layer.shards[i]->device, begun[i].second);
  CHECK(finishes.wait(1) == std::vector<std::string>{""});
  const auto message = [] { return cuda::Gpu::of(kFirst).host_memory(10); };
  // Kernels of the other device may still read the one that device 0 has written.
  cuda::set_lender(lend);
  message();
  CHECK(borrowed == 1);
  release.set_value();
  const std::string error = finishes.wait(2).back();
  CAPTURE(error);
  CHECK(contains(error, "on gpu(" + std::to_string(ordinal) + ") failed"));
  const auto first = message();
  const auto second = message();
  CHECK(borrowed == 1);
  cuda::set_lender(nullptr);
}

TEST_CASE("cuda backend: without memory on one device all fail, and no running statistics move") {
  const ShareGpus share;
  int context = 500;  // contexts of their own, whose pools are empty
  const std::vector<std::vector<Contexts>> spreads{{{"gpu", 2}}, {{"gpu", 1}, {"gpu", 1}}};
  for (const auto& spread : spreads) {
    for (const bool in_place : {false, true}) {
      for (const std::string call : {"cuMemAlloc", "cuMemHostAlloc"}) {
        long refused = 1;
        for (int allocation = 1; refused; ++allocation, context += 2) {
          CAPTURE(call);
          CAPTURE(allocation);
          Layer layer(spread, 49, context);
          // A slice of its array, which needs a copy.
          auto& shard = layer.shards[1];
          shard = std::make_unique<Shard<float>>(shard->device, shard->x.layout, 10, 1);
          layer.for_each([&](auto* each) { each->in_place = in_place; });
          fakeCudaInject((call + "@" + std::to_string(shard->ordinal()) + "#" +
                          std::to_string(allocation) + "+")
                             .c_str());
          const auto errors = layer.step({0, 1});
          refused = fakeCudaClearFaults();
          CHECK(std::count(errors.begin(), errors.end(), "") == (refused ? errors.size() - 2 : 4));
          if (errors.size() == 4) continue;
          for (const auto& each : layer.shards) {
            CHECK(each->running_mean.values() == each->averages);
            CHECK(each->running_variance.values() == each->averages);
          }
        }
      }
    }
  }
}

TEST_CASE("cuda backend: where sums fail midway, no kernel uses the arrays after the error") {
  const ShareGpus share;
  Layer layer({{"gpu", 1}}, 49, 160);
  REQUIRE(layer.step() == no_errors(2));
  const std::string ordinal = std::to_string(layer.shards[0]->ordinal());
  const Faults fault("cuEventRecord@" + ordinal + "=701");  // after the kernels
  std::promise<void> release;
  const auto released = release.get_future().share();
  keep_busy(160, &released);
  std::atomic<bool> may_end{false};
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    may_end = true;
    release.set_value();
  });
  Finishes finishes;
  CHECK_THROWS_WITH_AS(layer.shards[0]->forward_pass(finishes.one()),
                       doctest::Contains("cuEventRecord on gpu("), Error);
  CHECK(may_end);
  later.join();
  CHECK(finishes.wait(0).empty());
}

TEST_CASE("cuda backend: a fault of a kernel is the error of the call") {
  const ShareGpus share;
  Layer layer({{"gpu", 1}}, 49, 20);
  // The merge: a fault of the sums can break the GPU before their event is recorded, and no
  // backward pass would follow.
  const Faults fault("kernel#2");
  check_faults(layer.step(), 2);
}

TEST_CASE("cuda backend: steps of several processes do not allocate every time") {
  const ShareGpus share;
  // As many contexts as pools, so that what one process frees does not serve another.
  Layer layer({{"gpu", 2}, {"gpu", 3}}, 5000, 30);
  layer.step();
  layer.step();
  const long before = allocations();
  constexpr int kSteps = 30;
  const long copies_before = copies();
  for (int i = 0; i < kSteps; ++i) CHECK(layer.step() == no_errors(10));
  CHECK(copies() == copies_before);
  // The memory in use at once depends on which device is late. So a step may still need more than
  // all steps before it.
  CHECK(allocations() - before < kSteps / 2);
}

TEST_CASE("cuda backend: sums that fail are an error of all processes") {
  const ShareGpus share;
  Layer layer({{"gpu", 2}, {"gpu", 1}}, 49, 40);
  const Faults fault("kernel");
  Finishes finishes;
  for (const std::size_t i : {0, 1, 2}) layer.forward(i, &finishes);
  check_faults(finishes.wait(3), 3);
}

TEST_CASE("cuda backend: a merge that fails is an error for all in backward") {
  const ShareGpus share;
  Layer layer({{"gpu", 2}, {"gpu", 1}}, 49, 50);
  // Statistics for backward: forward may fail before it has any.
  REQUIRE(layer.step() == no_errors(6));
  layer.wire->hold();
  Finishes forwards;
  std::vector<At> rounds;
  for (const std::size_t i : {0, 1, 2}) rounds.push_back(layer.forward(i, &forwards));
  layer.wire->wait_for_held();
  const Faults fault("kernel");
  layer.wire->release();
  int failed = 0;
  for (const auto& error : forwards.wait(3)) failed += error.empty() ? 0 : 1;
  CHECK(failed >= 1);  // with all that share its GPU
  Finishes backwards;
  for (const std::size_t i : {0, 1, 2}) layer.backward(i, rounds[i], &backwards);
  check_faults(backwards.wait(3), 3);
}

#endif

}  // namespace gluon_syncbn::tests

// What the library has on one GPU context: memory, messages, and the thread that tells when work is
// done.

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/backend.h"
#include "cuda/gpu.h"
#include "cuda/needs_gpu.h"
#include "cuda/shard.h"
#include "support/refused_threads.h"

namespace gluon_syncbn::tests {
namespace {

constexpr int kIndex = 200;  // no other test uses this context

/// Errors of all work on a GPU so far.
std::vector<std::string> finish(cuda::Gpu* gpu) {
  Finishes finishes;
  gpu->when_done(finishes.one());
  return finishes.wait(1);
}

}  // namespace

TEST_CASE("cuda gpu: without a thread of its own a context is refused, until there can be one") {
  GLUON_SYNCBN_NEEDS_GPU();
  const ShareGpus share;
  const int before = started_threads();
  cuda::backend_of(kIndex, "layer");
  const int needed = started_threads() - before;
  REQUIRE(needed > 0);
  {
    const RefusedThreads refused(needed - 1);
    CHECK_THROWS_WITH(
        cuda::backend_of(kIndex + 1, "layer"),
        doctest::Contains("layer: the thread that waits for gpu(201) could not be started: "));
  }
  cuda::backend_of(kIndex + 1, "layer");
  CHECK(finish(&cuda::Gpu::of(kIndex + 1)) == std::vector<std::string>{""});
}

TEST_CASE("cuda gpu: once there, a context needs no more threads") {
  GLUON_SYNCBN_NEEDS_GPU();
  const ShareGpus share;
  cuda::Gpu& gpu = cuda::Gpu::of(kIndex);
  finish(&gpu);
  const RefusedThreads refused(0);
  CHECK(finish(&gpu) == std::vector<std::string>{""});
}

#ifdef GLUON_SYNCBN_EMULATED_CUDA

namespace {

std::vector<std::size_t> borrowed;

std::shared_ptr<void> lend(int index, std::size_t bytes) {
  CHECK(index == kIndex);
  borrowed.push_back(bytes);
  return std::make_unique<char[]>(bytes);
}

}  // namespace

TEST_CASE("cuda gpu: out of memory, what is kept goes first, then the host program lends") {
  cuda::Gpu gpu(kIndex, 0);
  const std::size_t large = 1 << 12;
  gpu.memory(large);  // and back again
  const auto kept_on_host = gpu.host_memory(large).get();

  const long before = emulated_allocations - emulated_releases;
  emulated_refusals = 1;
  const auto small = gpu.memory(large / 2);
  CHECK(emulated_allocations - emulated_releases == before);  // one came and one went
  CHECK(gpu.host_memory(large).get() == kept_on_host);

  emulated_refusals = 2;
  CHECK_THROWS_AS(gpu.memory(large), cuda::OutOfMemory);
  CHECK(emulated_refusals == 0);

  cuda::set_lender(lend);
  emulated_refusals = 2;
  {
    const auto lent = gpu.memory(large);
    CHECK(borrowed == std::vector<std::size_t>{large * sizeof(double)});
    CHECK(lent->bytes() == large * sizeof(double));
    *static_cast<double*>(lent->data()) = 1;
  }
  // No pool lends pinned memory. What kernels count with is no exception.
  emulated_refusals = 2;
  CHECK_THROWS_AS(gpu.host_memory(2 * large), cuda::OutOfMemory);
  emulated_refusals = 2;
  CHECK(gpu.claims(100).states != nullptr);
  CHECK(borrowed.size() == 2);
  cuda::set_lender(nullptr);
  CHECK(finish(&gpu) == std::vector<std::string>{""});
}

TEST_CASE("cuda gpu: what is captured into a CUDA graph is refused") {
  const ShareGpus share;
  Shard shard(kIndex, Layout{2, 5, 49}, 1u);
  Finishes finishes;
  emulated_capture = true;
  const auto refused = doctest::Contains("gpu(200) is being captured into a CUDA graph");
  const auto pass = shard.forward_pass(&finishes);
  CHECK_THROWS_WITH(pass->sum(nullptr), refused);
  const auto statistics = shard.backend->running_statistics(
      shard.data, shard.running_mean.data(), shard.running_variance.data(), Shard::kEps);
  Backend::Forward inference;
  inference.data = shard.data;
  inference.x = shard.on_device_x.data();
  inference.beta = shard.beta.data();
  inference.y = shard.y.data();
  CHECK_THROWS_WITH(shard.backend->inference(inference, statistics, shard.call(&finishes)),
                    refused);
  emulated_capture = false;
  pass->sum(nullptr);
  pass->finish({pass}, {});
  CHECK(finishes.wait(1) == std::vector<std::string>{""});
}

TEST_CASE("cuda gpu: without an event the thread waits for all work there is") {
  cuda::Gpu gpu(kIndex, 0);
  emulated_event_refusals = 1;
  const auto memory = gpu.memory(1);
  double value = 0;
  const double one = 1;
  gpu.stream()->copy(memory->data(), &one, sizeof one);
  gpu.stream()->copy(&value, memory->data(), sizeof value);
  Finishes finishes;
  gpu.when_done([&, done = finishes.one()](const std::string& error) {
    CHECK(value == 1);
    done(error);
  });
  CHECK(finishes.wait(1) == std::vector<std::string>{""});
  CHECK(emulated_event_refusals == 0);
}

#endif

}  // namespace gluon_syncbn::tests

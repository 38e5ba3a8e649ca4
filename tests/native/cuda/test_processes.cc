// GPU contexts of several processes. All "processes" live in this one, with GPU contexts of their
// own, and what connects them is a Wire in the place of Horovod.

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/needs_gpu.h"
#include "cuda/shard.h"
#include "support/ranks.h"
#include "sync/round.h"

namespace gluon_syncbn::tests {

TEST_CASE("cuda processes: contexts of all processes compute what one does on the whole batch") {
  GLUON_SYNCBN_NEEDS_GPU();
  const ShareGpus share;
  using Devices = std::vector<std::size_t>;
  for (const Devices& devices : {Devices{1, 1}, Devices{2, 1}, Devices{1, 2, 3}}) {
    for (const std::int64_t inner : {1, 49, 5000}) {
      Layer layer(devices, inner);
      CHECK(layer.step() == no_errors(2 * layer.shards.size()));
      layer.check_one_batch();
    }
  }
}

TEST_CASE("cuda processes: layers meet in any order") {
  GLUON_SYNCBN_NEEDS_GPU();
  const ShareGpus share;
  Layer a({2, 1, 1}, 49, 0, "a");
  Layer b({2, 1, 1}, 7, 0, "b");
  Layer c({2, 1, 1}, 1, 0, "c");
  CHECK(Layer::step({&a, &b, &c}) == no_errors(24));
  for (const Layer* layer : {&a, &b, &c}) layer->check_one_batch();
  for (int i = 0; i < 20; ++i) CHECK(Layer::step({&a, &b, &c}) == no_errors(24));
  a.check_same_averages();
}

TEST_CASE(
    "cuda processes: a process that fails fails the others at once, and the next step works") {
  GLUON_SYNCBN_NEEDS_GPU();
  const ShareGpus share;
  Layer layer({1, 2}, 49);
  Finishes finishes;
  for (const std::size_t i : {0, 1, 2}) {
    const auto round = layer.join(i);
    if (i < 2) layer.shards[i]->forward(&round->forward_meeting(), &finishes);
    if (i == 2) round->fail(layer.shards[i]->device, "no luck");
  }
  for (const auto& error : finishes.wait(2)) {
    CHECK(contains(error, "layer round 0 forward: failed on "));
    CHECK(contains(error, "failed on gpu(2): no luck"));
  }
  CHECK(layer.step() == no_errors(6));
}

TEST_CASE("cuda processes: the message of a round that has timed out is its error") {
  GLUON_SYNCBN_NEEDS_GPU();
  const ShareGpus share;
  Layer layer({2, 1}, 49);
  const auto forward = [&](std::size_t i, Finishes* finishes) {
    layer.shards[i]->forward(&layer.join(i)->forward_meeting(), finishes);
  };
  {
    const ScopedTimeout timeout(0.2);
    for (int round = 0; round < 3; ++round) {
      Finishes finishes;
      for (const std::size_t here : {0, 1}) forward(here, &finishes);
      for (const auto& error : finishes.wait(2)) CHECK(contains(error, " forward waited "));
    }
  }
  for (int round = 0; round < 3; ++round) {
    Finishes finishes;
    forward(2, &finishes);  // on the other process
    const std::string error = finishes.wait(1).front();
    if (round == 0) {
      CHECK(error.empty());  // was sent before the timeout
    } else {
      CHECK(contains(error, "failed on process 0: layer round " + std::to_string(round)));
    }
  }
  CHECK(layer.step() == no_errors(6));
}

TEST_CASE("cuda processes: by MXNET_ENABLE_GPU_P2P=0 messages leave from where they are") {
  GLUON_SYNCBN_NEEDS_GPU();
  const ShareGpus share;
  const NoPeerAccess no_peer_access;
  Layer layer({2, 1}, 49, 90);
  CHECK(layer.step() == no_errors(6));
  layer.check_one_batch();
#ifdef GLUON_SYNCBN_FAKE_CUDA
  // What comes back from the other processes is copied to each device, in both passes.
  const long before = copies();
  CHECK(layer.step() == no_errors(6));
  CHECK(copies() == before + 6);
#endif
}

#ifdef GLUON_SYNCBN_FAKE_CUDA

TEST_CASE("cuda processes: GPU contexts of one process and CPU contexts of another can meet") {
  const ShareGpus share;
  Layer layer({2, 1, 2}, 49);
  for (const std::size_t i : {2, 3, 4}) layer.shards[i]->move_to_cpu();
  for (int steps = 1; steps <= 5; ++steps) {
    CHECK(layer.step() == no_errors(10));
    if (steps == 1) layer.check_one_batch();
    layer.check_same_averages();
  }
}

TEST_CASE("cuda processes: steps do not allocate every time") {
  const ShareGpus share;
  // As many contexts as pools, so that what one process frees does not serve another.
  Layer layer({2, 3}, 5000, 30);
  layer.step();
  layer.step();
  const long before = allocations();
  constexpr int kSteps = 30;
  for (int i = 0; i < kSteps; ++i) CHECK(layer.step() == no_errors(10));
  // The memory in use at once depends on which device is late. So a step may still need more than
  // all steps before it.
  CHECK(allocations() - before < kSteps / 2);
}

TEST_CASE("cuda processes: a copy that fails on its way to the host is an error for all") {
  const ShareGpus share;
  Layer layer({2, 1}, 49, 40);
  Finishes alone;
  for (const auto& shard : layer.shards) {
    const auto pass = shard->forward_pass(&alone);
    pass->sum();
    pass->fail("only to make what the first step needs");
  }
  alone.wait(3);
  const Faults fault("copy");
  const auto errors = layer.step();
  REQUIRE(errors.size() == 3);
  for (const auto& error : errors) CHECK(contains(error, "an illegal memory access"));
}

TEST_CASE("cuda processes: a copy that fails on its way back is an error for all in backward") {
  const ShareGpus share;
  Layer layer({2, 1}, 49, 50);
  // Statistics for backward: forward may fail before it has any.
  REQUIRE(layer.step() == no_errors(6));
  layer.wire->hold();
  Finishes forwards;
  std::vector<std::shared_ptr<Round>> rounds;
  for (const std::size_t i : {0, 1, 2}) {
    rounds.push_back(layer.join(i));
    layer.shards[i]->forward(&rounds[i]->forward_meeting(), &forwards);
  }
  layer.wire->wait_for_held();
  const Faults fault("copy");
  layer.wire->release();
  int failed = 0;
  for (const auto& error : forwards.wait(3)) failed += error.empty() ? 0 : 1;
  CHECK(failed >= 1);  // with all that share its GPU
  Finishes backwards;
  for (const std::size_t i : {0, 1, 2}) {
    Shard& shard = *layer.shards[i];
    shard.backward(rounds[i]->next_backward(shard.device).get(), &backwards);
  }
  const auto errors = backwards.wait(3);
  REQUIRE(errors.size() == 3);
  for (const auto& error : errors) CHECK(contains(error, "an illegal memory access"));
}

#endif

}  // namespace gluon_syncbn::tests

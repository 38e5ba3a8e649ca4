// GPU contexts of several processes. All "processes" live in this one, with GPU contexts of their
// own, and what connects them is a Wire in the place of Horovod.

#include <doctest/doctest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/needs_gpu.h"
#include "cuda/shard.h"
#include "distributed/process_link.h"
#include "support/ranks.h"
#include "support/wire.h"
#include "sync/sync_group.h"

namespace gluon_syncbn::tests {
namespace {

/// One layer on the devices of one process.
struct Process {
  std::vector<Shard*> shards;
  std::unique_ptr<SyncGroup> group;
};

/// One layer on the devices of all processes.
struct Layer {
  /// `devices` of each process. `cpu` of them, the last ones, are CPU contexts.
  Layer(const std::vector<std::size_t>& devices, std::int64_t inner, std::size_t cpu = 0,
        const std::string& name = "layer", int first_context = 0)
      : wire(std::make_shared<Wire>(static_cast<int>(devices.size()))) {
    std::size_t total = 0;
    for (const std::size_t number : devices) total += number;
    shards = make_shards(total, inner, first_context);
    std::size_t next = 0;
    for (std::size_t p = 0; p < devices.size(); ++p) {
      Process process;
      for (std::size_t d = 0; d < devices[p]; ++d) {
        Shard& shard = *shards[next++];
        if (p + cpu >= devices.size()) shard.move_to_cpu();
        process.shards.push_back(&shard);
      }
      SyncGroup::Options options;
      options.link = std::make_shared<ProcessLink>(
          std::make_shared<WiredGroup>(wire, static_cast<int>(p)), name);
      process.group = std::make_unique<SyncGroup>(name, devices[p], options);
      processes.push_back(std::move(process));
    }
  }

  std::size_t size() const { return shards.size(); }

  /// visit(process, shard, number of the shard among all).
  void for_each(const std::function<void(Process&, Shard&, std::size_t)>& visit) {
    std::size_t number = 0;
    for (Process& process : processes) {
      for (Shard* shard : process.shards) visit(process, *shard, number++);
    }
  }

  std::shared_ptr<Wire> wire;
  std::vector<std::unique_ptr<Shard>> shards;
  std::vector<Process> processes;
};

std::shared_ptr<Round> join(Process& process, const Shard& shard) {
  auto round = process.group->join(shard.device);
  round->agree(shard.device, {shard.data.layout.channels, "float32", Shard::kEps, shard.momentum,
                              shard.device.type});
  return round;
}

/// One training step of all layers, on a thread for each context; every second context takes the
/// layers in reverse order. Errors of both passes.
std::vector<std::string> step(const std::vector<Layer*>& layers) {
  struct Place {
    Process* process;
    Shard* shard;
    std::shared_ptr<Round> round;
  };
  const std::size_t contexts = layers.front()->size();
  std::vector<std::vector<Place>> places(contexts);
  for (Layer* layer : layers) {
    layer->for_each([&](Process& process, Shard& shard, std::size_t number) {
      auto& own = places[number];
      own.insert(number % 2 == 0 ? own.end() : own.begin(), Place{&process, &shard, nullptr});
    });
  }
  Finishes forwards;
  Finishes backwards;
  run_ranks(contexts, [&](std::size_t context) {
    for (Place& place : places[context]) {
      place.round = join(*place.process, *place.shard);
      place.shard->forward(&place.round->forward(), &forwards);
    }
  });
  auto errors = forwards.wait(contexts * layers.size());
  if (errors != std::vector<std::string>(contexts * layers.size())) return errors;
  run_ranks(contexts, [&](std::size_t context) {
    for (Place& place : places[context]) {
      place.shard->backward(place.round->next_backward(place.shard->device).get(), &backwards);
    }
  });
  for (const auto& error : backwards.wait(contexts * layers.size())) errors.push_back(error);
  return errors;
}

std::vector<std::string> no_errors(std::size_t number) { return std::vector<std::string>(number); }

void check_one_batch(const Layer& layer) {
  const WholeBatch batch(layer.shards);
  const Shard& first = *layer.shards.front();
  for (const auto& shard : layer.shards) {
    batch.check(*shard);
    CHECK(shard->running_mean.download() == first.running_mean.download());
    CHECK(shard->running_variance.download() == first.running_variance.download());
  }
}

}  // namespace

TEST_CASE("cuda processes: contexts of all processes compute what one does on the whole batch") {
  GLUON_SYNCBN_NEEDS_GPU();
  const ShareGpus share;
  using Devices = std::vector<std::size_t>;
  for (const Devices& devices : {Devices{1, 1}, Devices{2, 1}, Devices{1, 2, 3}}) {
    for (const std::int64_t inner : {1, 49, 5000}) {
      Layer layer(devices, inner);
      CHECK(step({&layer}) == no_errors(2 * layer.size()));
      check_one_batch(layer);
    }
  }
}

TEST_CASE("cuda processes: layers meet in any order") {
  GLUON_SYNCBN_NEEDS_GPU();
  const ShareGpus share;
  Layer a({2, 1, 1}, 49, 0, "a");
  Layer b({2, 1, 1}, 7, 0, "b");
  Layer c({2, 1, 1}, 1, 0, "c");
  CHECK(step({&a, &b, &c}) == no_errors(24));
  for (const Layer* layer : {&a, &b, &c}) check_one_batch(*layer);
  for (int i = 0; i < 20; ++i) CHECK(step({&a, &b, &c}) == no_errors(24));
  CHECK(a.shards.front()->running_mean.download() == a.shards.back()->running_mean.download());
}

TEST_CASE(
    "cuda processes: a process that fails fails the others at once, and the next step works") {
  GLUON_SYNCBN_NEEDS_GPU();
  const ShareGpus share;
  Layer layer({1, 2}, 49);
  Finishes finishes;
  layer.for_each([&](Process& process, Shard& shard, std::size_t number) {
    const auto round = join(process, shard);
    if (number == 2) return round->fail(shard.device, "no luck");
    shard.forward(&round->forward(), &finishes);
  });
  for (const auto& error : finishes.wait(2)) {
    CHECK(contains(error, "layer round 0 forward: failed on "));
    CHECK(contains(error, "failed on gpu(2): no luck"));
  }
  CHECK(step({&layer}) == no_errors(6));
}

TEST_CASE("cuda processes: a message whose turn comes after the timeout of its round is sent") {
  GLUON_SYNCBN_NEEDS_GPU();
  const ShareGpus share;
  Layer layer({2, 1}, 49);
  Process& here = layer.processes.front();
  {
    const ScopedTimeout timeout(0.2);
    for (int round = 0; round < 3; ++round) {
      Finishes finishes;
      for (Shard* shard : here.shards) {
        shard->forward(&join(here, *shard)->forward(), &finishes);
      }
      for (const auto& error : finishes.wait(2)) CHECK(contains(error, " forward waited "));
    }
  }
  Process& late = layer.processes.back();
  for (int round = 0; round < 3; ++round) {
    Finishes finishes;
    late.shards.front()->forward(&join(late, *late.shards.front())->forward(), &finishes);
    CHECK(finishes.wait(1) == no_errors(1));
  }
  CHECK(step({&layer}) == no_errors(6));
}

TEST_CASE("cuda processes: by MXNET_ENABLE_GPU_P2P=0 messages leave from where they are") {
  GLUON_SYNCBN_NEEDS_GPU();
  const ShareGpus share;
  const NoPeerAccess no_peer_access;
  Layer layer({2, 1}, 49, 0, "layer", 90);
  CHECK(step({&layer}) == no_errors(6));
  check_one_batch(layer);
#ifdef GLUON_SYNCBN_FAKE_CUDA
  // What comes back from the other processes is copied to each device, in both passes.
  const long before = copies();
  CHECK(step({&layer}) == no_errors(6));
  CHECK(copies() == before + 6);
#endif
}

#ifdef GLUON_SYNCBN_FAKE_CUDA

TEST_CASE("cuda processes: GPU contexts of one process and CPU contexts of another can meet") {
  const ShareGpus share;
  Layer layer({2, 1, 2}, 49, 2);
  for (int steps = 1; steps <= 5; ++steps) {
    CHECK(step({&layer}) == no_errors(10));
    if (steps == 1) check_one_batch(layer);
    for (const auto& shard : layer.shards) {
      CHECK(shard->running_mean.download() == layer.shards.front()->running_mean.download());
      CHECK(shard->running_variance.download() ==
            layer.shards.front()->running_variance.download());
    }
  }
}

TEST_CASE("cuda processes: steps do not allocate every time") {
  const ShareGpus share;
  // As many contexts as pools, so that what one process frees does not serve another.
  Layer layer({2, 3}, 5000, 0, "layer", 30);
  step({&layer});
  step({&layer});
  const long before = allocations();
  constexpr int kSteps = 30;
  for (int i = 0; i < kSteps; ++i) CHECK(step({&layer}) == no_errors(10));
  // How much is in use at once depends on who is late, so that a step may still need more than all
  // before it.
  CHECK(allocations() - before < kSteps / 2);
}

TEST_CASE("cuda processes: a copy that fails on its way to the host is an error for all") {
  const ShareGpus share;
  Layer layer({2, 1}, 49, 0, "layer", 40);
  Finishes alone;
  for (const auto& shard : layer.shards) {
    const auto pass = shard->forward_pass(&alone);
    pass->sum(nullptr);
    pass->fail("only to make what the first step needs");
  }
  alone.wait(layer.size());
  const Faults fault("copy");
  const auto errors = step({&layer});
  REQUIRE(errors.size() == 3);
  for (const auto& error : errors) CHECK(contains(error, "an illegal memory access"));
}

TEST_CASE("cuda processes: a copy that fails on its way back is an error for all in backward") {
  const ShareGpus share;
  Layer layer({2, 1}, 49, 0, "layer", 50);
  // Statistics for backward: forward may fail before it has any.
  REQUIRE(step({&layer}) == no_errors(6));
  layer.wire->hold();
  Finishes forwards;
  std::vector<std::shared_ptr<Round>> rounds;
  layer.for_each([&](Process& process, Shard& shard, std::size_t) {
    rounds.push_back(join(process, shard));
    shard.forward(&rounds.back()->forward(), &forwards);
  });
  layer.wire->wait_for_held();
  const Faults fault("copy");
  layer.wire->release();
  int failed = 0;
  for (const auto& error : forwards.wait(3)) failed += error.empty() ? 0 : 1;
  CHECK(failed >= 1);  // with all that share its GPU
  Finishes backwards;
  layer.for_each([&](Process&, Shard& shard, std::size_t number) {
    shard.backward(rounds[number]->next_backward(shard.device).get(), &backwards);
  });
  const auto errors = backwards.wait(3);
  REQUIRE(errors.size() == 3);
  for (const auto& error : errors) CHECK(contains(error, "an illegal memory access"));
}

#endif

}  // namespace gluon_syncbn::tests

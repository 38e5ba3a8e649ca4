// Several GPU contexts in rounds as the operator makes them: on one thread each, whose calls return
// before the work is done.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/error.h"
#include "cuda/backend.h"
#include "cuda/gpu.h"
#include "cuda/needs_gpu.h"
#include "cuda/shard.h"
#include "support/captured_errors.h"
#include "support/ranks.h"
#include "sync/sync_group.h"

namespace gluon_syncbn::tests {
namespace {

/// One training step on all shards, each on a thread of its own. Errors of both passes.
std::vector<std::string> step(const std::vector<std::unique_ptr<Shard>>& shards, SyncGroup* group) {
  Finishes forwards;
  Finishes backwards;
  std::vector<std::shared_ptr<Round>> rounds(shards.size());
  run_ranks(shards.size(), [&](std::size_t rank) {
    rounds[rank] = group->join(shards[rank]->device);
    shards[rank]->forward(&rounds[rank]->forward(), &forwards);
  });
  std::vector<std::string> errors = forwards.wait(shards.size());
  run_ranks(shards.size(), [&](std::size_t rank) {
    shards[rank]->backward(rounds[rank]->next_backward(shards[rank]->device).get(), &backwards);
  });
  for (const auto& error : backwards.wait(shards.size())) errors.push_back(error);
  return errors;
}

/// Outputs, gradients and averages are those of one device, and averages the same bits on all.
void check_one_batch(const std::vector<std::unique_ptr<Shard>>& shards) {
  const WholeBatch batch(shards);
  for (const auto& shard : shards) {
    batch.check(*shard);
    CHECK(shard->running_mean.download() == shards.front()->running_mean.download());
    CHECK(shard->running_variance.download() == shards.front()->running_variance.download());
  }
}

}  // namespace

TEST_CASE("cuda backend: 1 to 8 contexts compute what one does on the whole batch") {
  GLUON_SYNCBN_NEEDS_GPU();
  const ShareGpus share;
  for (const bool in_place : {false, true}) {
    for (const std::size_t number : {1, 2, 4, 8}) {
      for (const std::int64_t inner : {1, 49, 5000}) {
        CAPTURE(in_place);
        CAPTURE(number);
        CAPTURE(inner);
        const auto shards = make_shards(number, inner);
        for (const auto& shard : shards) shard->in_place = in_place;
        SyncGroup group("layer", number);
        CHECK(step(shards, &group) == std::vector<std::string>(2 * number));
        check_one_batch(shards);
      }
    }
  }
}

TEST_CASE("cuda backend: in place, a gamma that is too small is the error of every device") {
  GLUON_SYNCBN_NEEDS_GPU();
  const ShareGpus share;
  for (const std::size_t number : {1, 2, 5}) {
    CAPTURE(number);
    const auto shards = make_shards(number, 49);
    SyncGroup group("layer", number);
    for (const float gamma : {0.0F, -1e-36F}) {
      for (const auto& shard : shards) {
        shard->in_place = true;
        shard->set_gamma(3, gamma);
      }
      const auto errors = step(shards, &group);
      REQUIRE(errors.size() == 2 * number);
      for (std::size_t i = 0; i < errors.size(); ++i) {
        CAPTURE(errors[i]);
        CHECK((i < number ? errors[i].empty()
                          : contains(errors[i], "inplace=True: channel 3 has gamma ")));
      }
    }
    // Of one device, and of a step that is not in place.
    for (const auto& shard : shards) shard->set_gamma(3, 1);
    shards.front()->set_gamma(4, 0);
    auto errors = step(shards, &group);
    CHECK(std::count(errors.begin(), errors.end(), "") == static_cast<long>(2 * number - 1));
    for (const auto& shard : shards) shard->in_place = false;
    CHECK(step(shards, &group) == std::vector<std::string>(2 * number));
    // What is well again.
    for (const auto& shard : shards) shard->in_place = true;
    shards.front()->set_gamma(4, 1);
    CHECK(step(shards, &group) == std::vector<std::string>(2 * number));
    for (const auto& shard : shards) {
      const auto dx = shard->dx.download();
      CHECK(std::all_of(dx.begin(), dx.end(), [](float value) { return std::isfinite(value); }));
    }
  }
}

TEST_CASE("cuda backend: a context that the machine has not is an error with the GPUs it has") {
  // Not one that another test has made, where contexts may share GPUs.
  const int missing = 1000;
  CHECK_THROWS_WITH(cuda::backend_of(missing, "layer 'a'"),
                    doctest::Contains("layer 'a': there is no gpu(1000); GPUs that CUDA finds: "));
}

TEST_CASE("cuda backend: by MXNET_ENABLE_GPU_P2P=0 devices meet in memory of the host") {
  GLUON_SYNCBN_NEEDS_GPU();
  const ShareGpus share;
  const NoPeerAccess no_peer_access;
  const auto shards = make_shards(3, 49, 80);
  const auto message = cuda::Gpu::of(80).message(10);
  CHECK(message.memory->place() == cuda::Memory::Place::kHost);
#ifdef GLUON_SYNCBN_FAKE_CUDA
  const Setting broken("PEERS", 2);
  const long meetings_before = meetings();
  const long copies_before = copies();
#endif
  SyncGroup group("layer", 3);
  CHECK(step(shards, &group) == std::vector<std::string>(6));
#ifdef GLUON_SYNCBN_FAKE_CUDA
  CHECK(meetings() == meetings_before);
  CHECK(copies() == copies_before);
#endif
  check_one_batch(shards);
}

#ifdef GLUON_SYNCBN_FAKE_CUDA

TEST_CASE("cuda backend: steps allocate nothing once there was one like them") {
  const ShareGpus share;
  const auto shards = make_shards(4, 5000);
  SyncGroup group("layer", 4);
  for (const bool in_place : {false, true}) {
    for (const auto& shard : shards) shard->in_place = in_place;
    step(shards, &group);
    step(shards, &group);
    const long before = allocations();
    for (int i = 0; i < 10; ++i) CHECK(step(shards, &group) == std::vector<std::string>(8));
    CHECK(allocations() == before);
  }
}

TEST_CASE("cuda backend: two kernels a device in each direction") {
  const ShareGpus share;
  for (const std::size_t number : {1u, 2u, 3u, 4u, 8u}) {
    // Channel-last and first, small arrays and large ones, odd sizes.
    for (const Layout& layout : {Layout{2, 5, 1}, Layout{1000, 64, 1}, Layout{2, 5, 49},
                                 Layout{1, 3, 12000}, Layout{300, 7, 3}}) {
      CAPTURE(number);
      CAPTURE(layout.outer);
      CAPTURE(layout.inner);
      const auto devices = static_cast<long>(number);
      std::vector<std::unique_ptr<Shard>> shards;
      for (std::size_t rank = 0; rank < number; ++rank) {
        shards.push_back(std::make_unique<Shard>(static_cast<int>(rank), layout, 1u));
        if (rank % 2) shards.back()->momentum.reset();
      }
      SyncGroup group("layer", number);
      step(shards, &group);  // which prepares counters
      for (const bool wants_y : {true, false}) {
        for (const auto& shard : shards) shard->wants_y = wants_y;
        const long before = launches();
        step(shards, &group);
        CHECK(launches() - before == 4 * devices);
      }
    }
  }
}

TEST_CASE("cuda backend: what a round asks of CUDA beside kernels grows with the devices") {
  const ShareGpus share;
  const auto count = [](const std::string& call) { return fakeCudaCount(call.c_str(), -1); };
  for (const std::size_t number : {1u, 2u, 4u, 8u}) {
    CAPTURE(number);
    const auto devices = static_cast<long>(number);
    const auto shards = make_shards(number, 49);
    SyncGroup group("layer", number);
    step(shards, &group);
    const long waits = count("cudaStreamWaitEvent");
    const long records = count("cudaEventRecord");
    const long captures = count("cudaStreamIsCapturing");
    const long changes = count("cuCtxSetCurrent");
    const long switches = count("cudaSetDevice");
    const long sleeps = count("cudaEventSynchronize");
    const long questions = count("cudaEventQuery");
    CHECK(step(shards, &group) == std::vector<std::string>(2 * number));
    // In each direction the last device waits for all others, and they for it.
    CHECK(count("cudaStreamWaitEvent") - waits == 4 * (devices - 1));
    CHECK(count("cudaEventRecord") - records == 4 * devices + (number > 2 ? 2 : 0));
    CHECK(count("cudaStreamIsCapturing") - captures == 4 * devices);
    // To and fro, for the sum and for the output; fewer where contexts share GPUs.
    CHECK(count("cuCtxSetCurrent") - changes <= 8 * devices);
    CHECK(count("cudaSetDevice") == switches);
    // For its own work if that is long, and for the error of each peer.
    const long slept = count("cudaEventSynchronize") - sleeps;
    CHECK(slept >= 2 * devices * (devices - 1));
    CHECK(slept <= 2 * devices * devices);
    CHECK(count("cudaEventQuery") - questions >= 2 * devices);
  }
}

TEST_CASE("cuda backend: an activation and a shortcut take no kernel more, in place one") {
  const ShareGpus share;
  for (const Layout& layout : {Layout{2, 5, 1}, Layout{1000, 64, 1}, Layout{1, 3, 12000}}) {
    CAPTURE(layout.outer);
    std::vector<std::unique_ptr<Shard>> shards;
    for (const int rank : {0, 1}) shards.push_back(std::make_unique<Shard>(rank, layout, 1u));
    SyncGroup group("layer", 2);
    step(shards, &group);  // which prepares counters
    const auto launches_of_step = [&](ActType type, bool adds_itself, bool in_place) {
      for (const auto& shard : shards) {
        shard->activation = {type, in_place ? 0.5 : 0};
        shard->adds_itself = adds_itself;
        shard->in_place = in_place;
      }
      const long before = launches();
      step(shards, &group);
      return launches() - before;
    };
    for (const ActType type : {ActType::kRelu, ActType::kNone}) {
      for (const bool adds_itself : {false, true}) {
        CHECK(launches_of_step(type, adds_itself, false) == 8);
      }
    }
    for (const ActType type : {ActType::kLeaky, ActType::kElu, ActType::kNone}) {
      CHECK(launches_of_step(type, false, true) == 10);  // one looks at gamma
    }
  }
}

TEST_CASE("cuda backend: a GPU gets access to another's memory when devices of the two meet") {
  const ShareGpus share;
  const auto shards = make_shards(2, 49, 60);  // contexts of their own
  const int ordinals = cuda::device_count() > 1 ? 2 : 1;
  const long before = meetings();
  for (const auto& shard : shards) {
    std::vector<std::unique_ptr<Shard>> alone;
    alone.push_back(std::make_unique<Shard>(shard->device.index, Layout{2, 5, 49}, 1u));
    SyncGroup group("layer", 1);
    CHECK(step(alone, &group) == std::vector<std::string>(2));
  }
  CHECK(meetings() == before);
  SyncGroup group("layer", 2);
  for (int i = 0; i < 3; ++i) CHECK(step(shards, &group) == std::vector<std::string>(4));
  CHECK(meetings() == before + ordinals * (ordinals - 1));
}

TEST_CASE("cuda backend: where GPUs cannot reach each other, messages come to lie on the host") {
  const ShareGpus share;
  const Setting no_peers("PEERS", 0);
  const auto shards = make_shards(3, 49, 70);
  SyncGroup group("layer", 3);
  for (int i = 0; i < 3; ++i) {
    const long copies_before = copies();
    const long on_host_before = host_allocations();
    CHECK(step(shards, &group) == std::vector<std::string>(6));
    // The first messages are there already, and are copied.
    if (cuda::device_count() > 1) CHECK((copies() > copies_before) == (i == 0));
    if (cuda::device_count() > 1) CHECK((host_allocations() > on_host_before) == (i == 0));
    if (i == 0) check_one_batch(shards);
  }
}

TEST_CASE("cuda backend: where peers read what is wrong, they meet on the host, with a warning") {
  const ShareGpus share;
  const Setting broken("PEERS", 2);
  const auto shards = make_shards(3, 49, 120);  // contexts of their own
  SyncGroup group("layer", 3);
  const CapturedErrors errors;
  for (int i = 0; i < 3; ++i) {
    CHECK(step(shards, &group) == std::vector<std::string>(6));
    if (i == 0) check_one_batch(shards);
  }
  if (cuda::device_count() == 1) return;
  const std::string text = errors.text();
  CAPTURE(text);
  const std::string warning =
      "gluon_syncbn: warning: gpu(121) reads wrong numbers from the memory of gpu(120)";
  CHECK(contains(text, warning));
  CHECK(text.find(warning) == text.rfind(warning));
}

TEST_CASE("cuda backend: a device that fails midway keeps its peers' messages until it is done") {
  const ShareGpus share;
  constexpr int kFirst = 110;  // contexts of their own, whose pools are empty
  const auto shards = make_shards(2, 49, kFirst);
  shards[1]->fault = "no luck";
  std::promise<void> release;
  cuda::Gpu::of(kFirst + 1).when_done([released = release.get_future().share()](auto&) {
    released.wait();
  });
  SyncGroup group("layer", 2);
  Finishes finishes;
  for (const auto& shard : shards) {
    shard->forward(&group.join(shard->device)->forward(), &finishes);
  }
  CHECK(finishes.wait(1) == std::vector<std::string>{""});
  const auto message = [] { return cuda::Gpu::of(kFirst).message(10); };
  // Kernels of the other device may still read the one that device 0 has written.
  long before = allocations();
  message();
  CHECK(allocations() == before + 1);
  release.set_value();
  CHECK(finishes.wait(2).back() == "no luck");
  before = allocations();
  const auto first = message();
  const auto second = message();
  CHECK(allocations() == before);
}

TEST_CASE("cuda backend: a fault of a kernel is the error of the call") {
  const ShareGpus share;
  const auto shards = make_shards(1, 49, 20);
  SyncGroup group("layer", 1);
  const Faults fault("kernel");
  const auto errors = step(shards, &group);
  REQUIRE(errors.size() == 2);
  for (const auto& error : errors) CHECK(contains(error, "an illegal memory access"));
}

#endif

}  // namespace gluon_syncbn::tests

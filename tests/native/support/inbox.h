#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "support/values.h"
#include "sync/barrier.h"

namespace gluon_syncbn::tests {

/// What a device gets from a barrier: the merged statistics, or an error.
struct Outcome {
  std::shared_ptr<const Part> merged;
  std::string error;

  explicit operator bool() const { return merged != nullptr; }
};

using Then = std::function<void(const Outcome&)>;

/// A pass without a device, with given partial statistics.
struct NumbersPass : Pass {
  tests::Then then;
};

class NumbersBackend : public Backend {
 public:
  PassPtr pass_of(const Part& part, Then then) const {
    const auto pass = std::make_shared<NumbersPass>();
    if (part.direction == Direction::kBackward) pass->work = Backward();
    pass->backend = this;
    pass->statistics = part.statistics;
    pass->then = std::move(then);
    return pass;
  }

  PassPtr begin(int, Work, Done) const override {
    throw std::logic_error("a pass of numbers has begun");
  }
  void sum(const Passes&, Done then) const override { then(""); }
  void finish(const Passes& passes, const std::optional<PartialStatistics>& merged,
              const std::string& error) const override {
    std::shared_ptr<const Part> all;
    if (error.empty()) {
      const Direction direction = passes.front()->direction();
      all = std::make_shared<const Part>(
          Part{direction, merged ? *merged : merge(direction, parts_of(passes))});
    }
    for (const auto& pass : passes) static_cast<NumbersPass&>(*pass).then({all, error});
  }
  void fill_with_nan(int, void*, std::size_t) const override {}
};

/// A place of a barrier.
struct At {
  void arrive(const Device& device, const PassPtr& pass) const {
    barrier->arrive(place, device, pass);
  }
  void fail(const std::string& error) const { barrier->fail(place, error); }
  // In forward.
  void agree(const Device& device, const Signature& signature) const {
    barrier->agree(place.round, device, signature);
  }
  void fail(const Device& device, const std::string& reason) const {
    barrier->fail_round(place.round, device, reason);
  }
  At next_backward(const Device& device) const {
    return {barrier, barrier->next_backward(place.round, device)};
  }

  std::shared_ptr<Barrier> barrier;
  Barrier::Place place;
};

inline At join(const std::shared_ptr<Barrier>& barrier, const Device& device,
               Calls::Epoch epoch = Calls::kNow) {
  return {barrier, barrier->join(device, epoch)};
}

/// The forward pass in a round of a barrier that no other test uses.
struct LonePlace : At {
  LonePlace(const std::string& layer, std::size_t ranks, std::uint64_t round) {
    barrier = std::make_shared<Barrier>(layer, ranks);
    for (std::uint64_t i = 0; i <= round; ++i) place = barrier->join({"cpu", 99});
  }
};

inline void arrive(const At& at, const Device& device, const Part& part, Then then) {
  static const NumbersBackend backend;
  at.arrive(device, backend.pass_of(part, std::move(then)));
}

/// Keeps all calls. Copies share the calls that they keep.
class Inbox {
 public:
  struct Delivery {
    Outcome outcome;
    std::thread::id thread;
  };

  Then then() const {
    return [state = state_](const Outcome& outcome) {
      const std::lock_guard<std::mutex> lock(state->mutex);
      state->calls.push_back({outcome, std::this_thread::get_id()});
      state->called.notify_all();
    };
  }

  /// Returns the first call. Throws if none comes, so that a lost result fails the test instead of
  /// hanging it.
  Delivery wait() const {
    std::unique_lock<std::mutex> lock(state_->mutex);
    const auto called = [&] { return !state_->calls.empty(); };
    if (!state_->called.wait_for(lock, std::chrono::seconds(60), called)) {
      throw std::runtime_error("a device got no outcome");
    }
    return state_->calls.front();
  }

  std::vector<Delivery> calls() const {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->calls;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable called;
    std::vector<Delivery> calls;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace gluon_syncbn::tests

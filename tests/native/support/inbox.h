#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <ostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "norm/moments.h"
#include "sync/meeting.h"
#include "sync/sync_group.h"

namespace gluon_syncbn::tests {

/// What a device gets from a meeting: the merged statistics, or an error.
template <class Part>
struct Outcome {
  std::shared_ptr<const Part> merged;
  std::string error;

  explicit operator bool() const { return merged != nullptr; }
};

template <class Part>
using Then = std::function<void(const Outcome<Part>&)>;

/// A pass without a device, with given partial statistics.
template <class Part>
class NumbersPass : public DevicePass {
 public:
  NumbersPass(Part part, tests::Then<Part> then) : part_(std::move(part)), then_(std::move(then)) {}

  void sum() override {}

  void merge(const DevicePasses& passes, OnMerged then) override {
    then(merged(passes).packed(), "");
  }

  void finish(const DevicePasses& passes,
              const std::vector<PartialStatistics>& processes) override {
    const auto all = std::make_shared<const Part>(
        processes.empty() ? merged(passes) : merge_packed<Part>(processes));
    for (const auto& pass : passes) {
      if (pass.get() != this) static_cast<NumbersPass&>(*pass).then_({all, ""});
    }
    then_({all, ""});
  }

  void fail(const std::string& error) override { then_({nullptr, error}); }

 protected:
  static Part merged(const DevicePasses& passes) {
    std::vector<const Part*> parts;
    for (const auto& pass : passes) parts.push_back(&static_cast<NumbersPass&>(*pass).part_);
    return Part::merge(parts);
  }

 private:
  const Part part_;
  const tests::Then<Part> then_;
};

/// The only meeting of a group, in forward.
struct LoneMeeting {
  LoneMeeting(const std::string& layer, std::size_t ranks, std::uint64_t round)
      : group(std::make_shared<SyncGroup>(layer, ranks)),
        meeting(std::make_shared<Meeting>(group, round, Direction::kForward)) {}

  Meeting* operator->() const { return meeting.get(); }
  Meeting& operator*() const { return *meeting; }

  const std::shared_ptr<SyncGroup> group;
  const std::shared_ptr<Meeting> meeting;
};

template <class T>
struct NotDeduced {
  using Type = T;
};

template <class Part>
void arrive(Meeting& meeting, const typename NotDeduced<Device>::Type& device, const Part& part,
            typename NotDeduced<Then<Part>>::Type then) {
  meeting.arrive(device, std::make_shared<NumbersPass<Part>>(part, std::move(then)));
}

/// Keeps all calls. Copies share the calls that they keep.
template <class Part>
class Inbox {
 public:
  struct Delivery {
    Outcome<Part> outcome;
    std::thread::id thread;
  };

  Then<Part> then() const {
    return [state = state_](const Outcome<Part>& outcome) {
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

#include "sync/meeting.h"

#include <utility>

#include "common/enforce.h"
#include "common/report.h"
#include "sync/finished_rounds.h"
#include "sync/sync_group.h"

namespace gluon_syncbn {
namespace {

const char* text_of(Direction direction) {
  return direction == Direction::kForward ? "forward" : "backward";
}

}  // namespace

Meeting::Meeting(const std::shared_ptr<SyncGroup>& group, std::uint64_t round, Direction direction,
                 std::shared_ptr<ProcessRound> processes)
    : group_(group),
      num_devices_(group->num_devices()),
      round_(round),
      direction_(direction),
      name_(group->layer() + " round " + std::to_string(round) + " " + text_of(direction)),
      processes_(std::move(processes)) {}

Meeting::~Meeting() { Watchdog::instance().unwatch(this); }

void Meeting::arrive(const Device& device, std::shared_ptr<DevicePass> pass) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (error_) {
    const std::string error = *error_;
    lock.unlock();
    return pass->fail(error);
  }
  if (is_over_ || passes_.count(device) > 0) {
    lock.unlock();
    const std::string error = device.name() + " came twice";
    fail(error);
    GLUON_SYNCBN_ENFORCE(false, name_ + ": " + error);
  }
  passes_[device] = pass;
  if (passes_.size() == 1 && (num_devices_ > 1 || processes_)) {
    if (const auto error = Watchdog::instance().watch(shared_from_this())) {
      lock.unlock();
      return fail(*error);
    }
  }
  if (passes_.size() < num_devices_) return;
  if (processes_) return exchange(lock, pass);
  count();
  pass->finish(take_passes(lock), {});
}

void Meeting::exchange(std::unique_lock<std::mutex>& lock,
                       const std::shared_ptr<DevicePass>& last) {
  is_sent_ = true;
  lock.unlock();
  processes_->exchange(
      direction_,
      [self = shared_from_this(), last](DevicePass::OnMerged then) {
        self->merge(last, std::move(then));
      },
      [self = shared_from_this(), last](const std::vector<PartialStatistics>& processes,
                                        const std::string& error) {
        self->answered(processes, error, last);
      });
}

/// Called when the message of this meeting has its turn. If the meeting has failed until then,
/// MXNet has freed the arrays of its passes. While they merge, no pass may fail for the same
/// reason.
void Meeting::merge(const std::shared_ptr<DevicePass>& last, DevicePass::OnMerged then) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (error_) {
    const std::string error = *error_;
    lock.unlock();
    return then({}, error);
  }
  is_merging_ = true;
  const DevicePasses passes = this->passes();
  lock.unlock();
  last->merge(passes, [self = shared_from_this(), then = std::move(then)](
                          const PartialStatistics& merged, const std::string& error) {
    if (const auto failed = self->end_merge()) return then({}, *failed);
    then(merged, error);
  });
}

/// Returns the error if the meeting has failed meanwhile.
std::optional<std::string> Meeting::end_merge() {
  std::unique_lock<std::mutex> lock(mutex_);
  is_merging_ = false;
  const DevicePasses passes = std::exchange(fail_after_merge_, {});
  const auto error = error_;
  lock.unlock();
  for (const auto& pass : passes) pass->fail(*error);
  return error;
}

void Meeting::answered(const std::vector<PartialStatistics>& processes, const std::string& error,
                       const std::shared_ptr<DevicePass>& last) {
  if (!error.empty()) return fail(error);
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_over_) return;
  count();
  last->finish(take_passes(lock), processes);
}

bool Meeting::has_met() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return is_over_ && !error_;
}

void Meeting::fail(const std::string& error) {
  end_with(name_ + ": " + error, std::nullopt, [] {});
}

void Meeting::interrupt(const Interruption& interruption) {
  end_with(name_ + ": " + interruption.reason, false, [&] {
    const auto group = group_.lock();
    if (!group || direction_ == Direction::kBackward) return;
    if (interruption.calls_may_come) {
      group->failed_at_once(round_);
    } else {
      group->timed_out();
    }
  });
}

void Meeting::remind(Seconds waited, Seconds limit) {
  if (const auto group = group_.lock()) report(reminder(*group, wait(), waited, limit));
}

void Meeting::give_up(Seconds waited) {
  const auto group = group_.lock();
  if (!group) return;
  const Wait wait = this->wait();
  end_with(timeout_error(*group, wait, waited), wait.processes != nullptr, [&] {
    if (direction_ == Direction::kForward && !wait.processes) group->timed_out();
  });
}

Wait Meeting::wait() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Wait wait{name_, direction_, {}, is_sent_ ? processes_ : nullptr};
  for (const auto& [device, _] : passes_) wait.present.insert(device);
  return wait;
}

void Meeting::count() const {
  auto& counts = FinishedRounds::instance();
  if (direction_ == Direction::kBackward || !counts.is_counting()) return;
  if (const auto group = group_.lock()) counts.add(group->layer(), device_list(passes_));
}

DevicePasses Meeting::passes() const {
  DevicePasses passes;
  for (const auto& [_, pass] : passes_) passes.push_back(pass);
  return passes;
}

DevicePasses Meeting::take_passes(std::unique_lock<std::mutex>& lock) {
  is_over_ = true;
  DevicePasses passes = this->passes();
  passes_.clear();
  lock.unlock();
  Watchdog::instance().unwatch(this);
  return passes;
}

/// Has no effect if `is_sent` is given and no longer true: the reason of the error is gone.
template <class BeforePassesFail>
void Meeting::end_with(const std::string& error, std::optional<bool> is_sent,
                       const BeforePassesFail& before_passes_fail) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_over_ || is_sent.value_or(is_sent_) != is_sent_) return;
  error_ = error;
  const bool is_merging = is_merging_;
  if (is_merging) fail_after_merge_ = this->passes();
  const bool others_wait = processes_ && !is_sent_;
  const DevicePasses passes = take_passes(lock);
  before_passes_fail();
  // Before the passes fail, because the next round of their devices would overtake this message.
  if (others_wait) processes_->cancel(direction_, error);
  if (is_merging) return;
  for (const auto& pass : passes) pass->fail(error);
}

void finish_alone(const std::shared_ptr<DevicePass>& pass) {
  try {
    pass->sum();
  } catch (const std::exception& error) {
    return pass->fail(error.what());
  }
  pass->finish({pass}, {});
}

}  // namespace gluon_syncbn

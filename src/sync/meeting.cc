#include "sync/meeting.h"

#include <tuple>
#include <utility>

#include "common/error.h"
#include "common/per_process.h"
#include "common/report.h"
#include "sync/sync_group.h"

namespace gluon_syncbn {
namespace {

struct Counts {
  std::atomic<bool> are_wanted{false};
  std::mutex mutex;
  /// By layer, devices and key. Layers with one name have their own keys.
  std::map<std::tuple<std::string, std::string, std::string>, std::uint64_t> rounds;
};

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

void Meeting::arrive(const Device& device, const PassPtr& pass) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (error_) {
    const std::string error = *error_;
    lock.unlock();
    return gluon_syncbn::fail(pass, error);
  }
  if (state_ != State::kComing || passes_.count(device) > 0) {
    lock.unlock();
    const std::string error = device.name() + " came twice";
    fail(error);
    const InternalError internal(name_ + ": " + error, __FILE__, __LINE__);
    return gluon_syncbn::fail(pass, internal.what());
  }
  passes_[device] = pass;
  if (passes_.size() == 1 && (num_devices_ > 1 || processes_)) {
    if (const auto error = Watchdog::instance().watch(shared_from_this())) {
      lock.unlock();
      return fail(*error);
    }
  }
  if (passes_.size() < num_devices_) return;
  if (!processes_) return finish(std::move(lock), std::nullopt);
  state_ = State::kQueued;
  lock.unlock();
  processes_->queue(direction_, shared_from_this());
}

/// A meeting that has failed before sends its error: its passes are complete, and MXNet has freed
/// their arrays. While passes sum, none may fail, for the same reason; they fail in send().
void Meeting::merge() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (error_) {
    lock.unlock();
    return send({}, "");
  }
  state_ = State::kMerging;
  const Passes passes = this->passes();
  lock.unlock();
  const auto merge_and_send = [self = shared_from_this(), passes](std::string error) {
    PartialStatistics merged;
    try {
      if (error.empty()) merged = gluon_syncbn::merge(self->direction_, parts_of(passes));
    } catch (const std::exception& caught) {
      error = caught.what();
    }
    self->send(merged, error);
  };
  passes.front()->backend->sum(passes, merge_and_send);
}

/// Sends the error of the meeting instead, if it has failed meanwhile. The message has its place in
/// the queue already, so the passes may fail first.
void Meeting::send(const PartialStatistics& merged, const std::string& error) {
  std::unique_lock<std::mutex> lock(mutex_);
  state_ = State::kSent;
  const auto failed = error_;
  const Passes passes = failed ? take_passes() : Passes();
  lock.unlock();
  for (const auto& pass : passes) gluon_syncbn::fail(pass, *failed);
  if (failed) return processes_->send(direction_, shared_from_this(), {}, *failed);
  if (!error.empty()) fail(error);
  processes_->send(direction_, shared_from_this(), merged, error);
}

void Meeting::answered(const PartialStatistics& merged, const std::string& error) {
  if (!error.empty()) return fail(error);
  std::unique_lock<std::mutex> lock(mutex_);
  if (!error_) finish(std::move(lock), merged);
}

void Meeting::finish(std::unique_lock<std::mutex> lock,
                     const std::optional<PartialStatistics>& merged) {
  count();
  state_ = State::kDone;
  const Passes passes = take_passes();
  lock.unlock();
  Watchdog::instance().unwatch(this);
  passes.front()->backend->finish(passes, merged, "");
}

bool Meeting::has_met() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_ == State::kDone;
}

void Meeting::fail(const std::string& error) {
  end_with(name_ + ": " + error, EndsIf::kNotDone, [] {});
}

void Meeting::interrupt(const Interruption& interruption) {
  const auto group = group_.lock();
  std::string error = name_ + ": " + interruption.reason;
  const auto program = interruption.program;
  if (group && program == Interruption::kStandsStill)
    error += ".\n" + description(*group, current_wait());
  end_with(error, EndsIf::kComing, [&] {
    if (!group || direction_ == Direction::kBackward) return;
    if (program == Interruption::kHasBrokenOff) {
      group->timed_out();
    } else if (program == Interruption::kStandsStill) {
      group->stood_still(round_);
    } else {
      group->failed_at_once(round_);
    }
  });
}

bool Meeting::waits_for_calls() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_ == State::kComing;
}

void Meeting::remind(Seconds waited, Seconds limit, const ProgramState& program) {
  if (const auto group = group_.lock())
    report(reminder(*group, current_wait(), waited, limit, program));
}

void Meeting::give_up(Seconds waited) {
  const auto group = group_.lock();
  if (!group) return;
  const Wait wait = current_wait();
  const EndsIf ends_if = wait.processes ? EndsIf::kAllHaveCome : EndsIf::kComing;
  end_with(timeout_error(*group, wait, waited), ends_if, [&] {
    if (direction_ == Direction::kForward && !wait.processes) group->timed_out();
  });
}

Wait Meeting::current_wait() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Wait wait{name_, direction_, {}, state_ == State::kComing ? nullptr : processes_};
  for (const auto& [device, _] : passes_) wait.present.insert(device);
  return wait;
}

void Meeting::count() const {
  auto& counts = PerProcess<Counts>::instance();
  if (direction_ == Direction::kBackward || !counts.are_wanted) return;
  const auto group = group_.lock();
  if (!group) return;
  const std::lock_guard<std::mutex> lock(counts.mutex);
  ++counts.rounds[{group->layer(), device_list(passes_), group->options().key}];
}

Passes Meeting::passes() const {
  Passes passes;
  for (const auto& [_, pass] : passes_) passes.push_back(pass);
  return passes;
}

Passes Meeting::take_passes() {
  const Passes passes = this->passes();
  passes_.clear();
  return passes;
}

/// Has no effect in other states than `ends_if`: the reason of the error is gone.
template <class BeforePassesFail>
void Meeting::end_with(const std::string& error, EndsIf ends_if,
                       const BeforePassesFail& before_passes_fail) {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool are_coming = state_ == State::kComing;
  if (error_ || state_ == State::kDone) return;
  if (ends_if != EndsIf::kNotDone && are_coming != (ends_if == EndsIf::kComing)) return;
  error_ = error;
  const bool others_wait = processes_ && are_coming;
  if (others_wait) state_ = State::kQueued;
  // Passes that merge fail in send().
  const Passes passes = state_ == State::kMerging ? Passes() : take_passes();
  lock.unlock();
  Watchdog::instance().unwatch(this);
  before_passes_fail();
  // Before the passes fail, because the next round of their devices would overtake this message.
  if (others_wait) processes_->queue(direction_, shared_from_this());
  for (const auto& pass : passes) gluon_syncbn::fail(pass, error);
}

void count_rounds() { PerProcess<Counts>::instance().are_wanted = true; }

std::string counted_rounds() {
  auto& counts = PerProcess<Counts>::instance();
  const std::lock_guard<std::mutex> lock(counts.mutex);
  std::string text;
  for (const auto& [met, number] : counts.rounds) {
    const auto& layer = std::get<0>(met);
    const auto& devices = std::get<1>(met);
    text += layer + "\t" + std::to_string(number) + "\t" + devices + "\n";
  }
  return text;
}

}  // namespace gluon_syncbn

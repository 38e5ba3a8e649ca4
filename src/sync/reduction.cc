#include "sync/reduction.h"

#include <iostream>
#include <sstream>
#include <utility>

#include "common/enforce.h"

namespace gluon_syncbn {

Reduction::Reduction(std::string what, std::size_t num_devices,
                     std::shared_ptr<Attendance> attendance, std::string option,
                     std::shared_ptr<InterProcessReduce> processes)
    : what_(std::move(what)),
      num_devices_(num_devices),
      attendance_(std::move(attendance)),
      option_(std::move(option)),
      processes_(std::move(processes)) {}

Reduction::~Reduction() { Watchdog::instance().unwatch(this); }

void Reduction::begin(DevicePass* pass) {
  if (processes_) return pass->begin(nullptr);
  ++begun_;
  pass->begin([this] { return begun_ >= num_devices_; });
}

void Reduction::arrive(const Device& device, std::shared_ptr<DevicePass> pass) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!error_) {
    const bool is_awaited = !done_ && passes_.count(device) == 0;
    if (!is_awaited) {
      lock.unlock();
      fail(device.name() + " came twice");
    }
    GLUON_SYNCBN_ENFORCE(is_awaited, device.name() + " came to " + what_ + " twice");
    passes_[device] = pass;
    if (passes_.size() == 1 && (num_devices_ > 1 || processes_)) {
      if (const auto error = Watchdog::instance().watch(shared_from_this())) {
        lock.unlock();
        fail(*error);
        return;
      }
    }
    if (passes_.size() < num_devices_) return;
  }
  if (error_) {
    const std::string error = *error_;
    lock.unlock();
    pass->fail(error);
  } else if (processes_) {
    send(lock, pass);
  } else {
    finish_all(pass.get(), take_passes(lock), {});
  }
}

void Reduction::fail(const std::string& error) {
  end_with(what_ + ": " + error, [] {});
}

void Reduction::interrupt(const Interruption& interruption) {
  if (state().is_sent) return;
  end_with(what_ + ": " + interruption.reason, [&] {
    if (interruption.calls_may_come) return attendance_->failed_at_once();
    attendance_->timed_out();
  });
}

void Reduction::warn(Seconds waited, Seconds limit) {
  const State state = this->state();
  std::ostringstream message;
  message << "gluon_syncbn: warning: " << what_ << " has waited " << waited.count() << " s for "
          << awaited(state) << " and fails at " << limit.count() << " s"
          << attendance_->timeout_advice() << ". " << describe(state) << "\n";
  // In one piece, because other threads may write too.
  std::cerr << message.str() << std::flush;
}

void Reduction::give_up(Seconds waited) {
  const State state = this->state();
  std::ostringstream message;
  message << what_ << " waited " << waited.count() << " s for " << awaited(state)
          << (state.is_sent ? "" : " (" + option_ + "=" + std::to_string(num_devices_) + ")")
          << ". " << describe(state);
  end_with(message.str(), [&] {
    if (!state.is_sent) attendance_->timed_out();
  });
}

Reduction::State Reduction::state() {
  const std::lock_guard<std::mutex> lock(mutex_);
  State state;
  for (const auto& [device, _] : passes_) state.present.insert(device);
  state.is_sent = sent_;
  return state;
}

std::string Reduction::awaited(const State& state) const {
  return state.is_sent ? "the other processes"
                       : "all of " + std::to_string(num_devices_) + " devices";
}

std::string Reduction::describe(const State& state) const {
  return state.is_sent ? processes_->describe() : attendance_->describe(state.present);
}

DevicePasses Reduction::passes() const {
  DevicePasses passes;
  for (const auto& [_, pass] : passes_) passes.push_back(pass);
  return passes;
}

DevicePasses Reduction::take_passes(std::unique_lock<std::mutex>& lock) {
  done_ = true;
  DevicePasses passes = this->passes();
  passes_.clear();
  lock.unlock();
  Watchdog::instance().unwatch(this);
  return passes;
}

void Reduction::send(std::unique_lock<std::mutex>& lock, const std::shared_ptr<DevicePass>& last) {
  sent_ = true;
  // They stay here, where the watchdog finds them.
  const DevicePasses passes = this->passes();
  lock.unlock();
  processes_->reduce([passes, last](const DevicePass::Then& then) { last->reduce(passes, then); },
                     [self = shared_from_this(), last](
                         const std::vector<PartialStatistics>& processes,
                         const std::string& error) { self->come_back(processes, error, last); });
}

void Reduction::come_back(const std::vector<PartialStatistics>& processes, const std::string& error,
                          const std::shared_ptr<DevicePass>& last) {
  if (!error.empty()) return fail(error);
  std::unique_lock<std::mutex> lock(mutex_);
  if (error_ || done_) return;
  finish_all(last.get(), take_passes(lock), processes);
}

template <class BeforeTelling>
void Reduction::end_with(const std::string& error, const BeforeTelling& before_telling) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (error_ || done_) return;
  error_ = error;
  const bool others_wait = processes_ && !sent_;
  const DevicePasses passes = take_passes(lock);
  before_telling();
  // Before the devices know, whose next round would otherwise overtake this message.
  if (others_wait) processes_->cancel(error);
  for (const auto& pass : passes) pass->fail(error);
}

}  // namespace gluon_syncbn

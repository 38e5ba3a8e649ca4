#ifndef GLUON_SYNCBN_SYNC_REDUCTION_H_
#define GLUON_SYNCBN_SYNC_REDUCTION_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/device.h"
#include "common/enforce.h"
#include "common/result.h"
#include "common/watchdog.h"
#include "distributed/crossing.h"

namespace gluon_syncbn {

/// On whose thread a continuation is called: that of its own device, inside arrive(), or that of
/// another device or the watchdog, which it must not keep busy.
enum class CalledOn { kOwnThread, kForeignThread };

/// Knows the devices that an exchange waits for.
class Attendance {
 public:
  virtual ~Attendance() = default;
  /// "Came: cpu(0). Missing: cpu(1). Usual causes: ...", for a message.
  virtual std::string describe(const std::set<Device>& present) const = 0;
  /// Called where the exchange has failed for want of a device, before anybody is told.
  virtual void timed_out() = 0;
};

/// One meeting of all devices: each brings a part, and nobody waits. Whoever arrives last merges
/// the parts in the order of devices and calls everybody's continuation, or, with a crossing, sends
/// what was merged across it; then the continuations are called with what comes back.
template <class Part>
class Exchange : public Waiting, public std::enable_shared_from_this<Exchange<Part>> {
 public:
  using Continuation = std::function<void(const Outcome<Part>&, CalledOn)>;

  /// `option` is what users know `num_devices` as. `crossing` leads to the other processes, if
  /// there are any.
  Exchange(std::string what, std::size_t num_devices, std::shared_ptr<Attendance> attendance,
           std::string option = "num_devices", std::shared_ptr<Crossing<Part>> crossing = nullptr)
      : what_(std::move(what)),
        num_devices_(num_devices),
        attendance_(std::move(attendance)),
        option_(std::move(option)),
        crossing_(std::move(crossing)) {}
  ~Exchange() override { Watchdog::instance().unwatch(this); }

  /// Tells that a device is on its way, and will bring its part or fail the exchange.
  void announce() { ++announced_; }
  bool all_are_coming() const { return announced_ >= num_devices_; }

  /// Whether what is merged goes to other processes.
  bool crosses() const { return crossing_ != nullptr; }

  /// Calls `then` exactly once: now, later by the last device to arrive, or with an error by
  /// fail(). `then` must not throw. Throws InternalError instead if the device has come before.
  void arrive(const Device& device, Part part, Continuation then) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!error_) {
      const bool is_awaited = !done_ && slots_.count(device) == 0;
      if (!is_awaited) {
        lock.unlock();
        fail(device.name() + " came twice");
      }
      GLUON_SYNCBN_ENFORCE(is_awaited, device.name() + " came to " + what_ + " twice");
      slots_[device] = {std::move(part), std::move(then)};
      if (slots_.size() == 1 && (num_devices_ > 1 || crossing_)) {
        if (const auto error = Watchdog::instance().watch(this->shared_from_this())) {
          lock.unlock();
          fail(*error);
          return;
        }
      }
      if (slots_.size() < num_devices_) return;
    }
    if (error_) {
      const Outcome<Part> outcome{nullptr, *error_};
      lock.unlock();
      then(outcome, CalledOn::kOwnThread);
      return;
    }
    if (crossing_) {
      cross(lock);
      return;
    }
    const auto slots = take_slots(lock);
    finish(slots, merge(slots), &device);
  }

  /// Every device that waits, and every one that still comes, gets `error`, which is put behind
  /// the name of the exchange. Without effect once all have met.
  void fail(const std::string& error) override {
    end_with(what_ + ": " + error, [] {});
  }

  void warn(Seconds waited, Seconds limit) override {
    const auto [present, crossed] = state();
    std::ostringstream message;
    message << "gluon_syncbn: warning: " << what_ << " has waited " << waited.count() << " s for "
            << awaited(crossed) << " and fails at " << limit.count()
            << " s (gluon_syncbn.set_timeout). " << describe(present, crossed) << "\n";
    // In one piece, because other threads may write too.
    std::cerr << message.str() << std::flush;
  }

  void give_up(Seconds waited) override {
    const auto [present, crossed] = state();
    std::ostringstream message;
    message << what_ << " waited " << waited.count() << " s for " << awaited(crossed)
            << (crossed ? "" : " (" + option_ + "=" + std::to_string(num_devices_) + ")") << ". "
            << describe(present, crossed);
    end_with(message.str(), [this, came = crossed] {
      if (!came) attendance_->timed_out();
    });
  }

 private:
  struct Slot {
    Part part;
    Continuation then;
  };
  using Slots = std::map<Device, Slot>;

  /// Who has come, and whether what they brought is on its way to the other processes.
  std::pair<std::set<Device>, bool> state() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::set<Device> devices;
    for (const auto& [device, _] : slots_) devices.insert(device);
    return {devices, crossed_};
  }

  std::string awaited(bool crossed) const {
    return crossed ? "the other processes" : "all of " + std::to_string(num_devices_) + " devices";
  }

  std::string describe(const std::set<Device>& present, bool crossed) const {
    if (!crossed) return attendance_->describe(present);
    return crossing_->describe();
  }

  /// All devices of this process have come.
  void cross(std::unique_lock<std::mutex>& lock) {
    const auto own = merge(slots_);
    crossed_ = static_cast<bool>(own);
    lock.unlock();
    if (!own) {
      end_with(own.error, [] {});
      return;
    }
    crossing_->cross(own.merged, [self = this->shared_from_this()](const Outcome<Part>& outcome) {
      self->come_back(outcome);
    });
  }

  void come_back(const Outcome<Part>& outcome) {
    if (!outcome) {
      fail(outcome.error);
      return;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    if (error_ || done_) return;
    finish(take_slots(lock), outcome, nullptr);
  }

  template <class BeforeTelling>
  void end_with(const std::string& error, const BeforeTelling& before_telling) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (error_ || done_) return;
    error_ = error;
    const bool others_wait = crossing_ && !crossed_;
    const auto slots = take_slots(lock);
    before_telling();
    // Before the devices know, whose next round would otherwise overtake this message.
    if (others_wait) crossing_->cancel(error);
    finish(slots, {nullptr, error}, nullptr);
  }

  Slots take_slots(std::unique_lock<std::mutex>& lock) {
    done_ = true;
    Slots slots;
    slots.swap(slots_);
    lock.unlock();
    Watchdog::instance().unwatch(this);
    return slots;
  }

  Outcome<Part> merge(const Slots& slots) const {
    try {
      std::vector<const Part*> parts;
      for (const auto& [_, slot] : slots) parts.push_back(&slot.part);
      return {std::make_shared<const Part>(Part::merge(parts)), {}};
    } catch (const std::exception& error) {
      return {nullptr, what_ + ": " + error.what()};
    }
  }

  /// The caller's own continuation runs last: it may compute on this thread, and its peers should
  /// not wait for that.
  static void finish(const Slots& slots, const Outcome<Part>& outcome, const Device* caller) {
    for (const auto& [device, slot] : slots) {
      if (!caller || !(device == *caller)) slot.then(outcome, CalledOn::kForeignThread);
    }
    if (caller) slots.at(*caller).then(outcome, CalledOn::kOwnThread);
  }

  const std::string what_;
  const std::size_t num_devices_;
  const std::shared_ptr<Attendance> attendance_;
  const std::string option_;
  const std::shared_ptr<Crossing<Part>> crossing_;  // empty where this process is all there is
  std::atomic<std::size_t> announced_{0};
  std::mutex mutex_;
  bool crossed_ = false;
  bool done_ = false;
  std::optional<std::string> error_;
  Slots slots_;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_SYNC_REDUCTION_H_

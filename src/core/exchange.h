#ifndef GLUON_SYNCBN_CORE_EXCHANGE_H_
#define GLUON_SYNCBN_CORE_EXCHANGE_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/watchdog.h"

namespace gluon_syncbn {

/// What an exchange gives to every device: the merged parts, or why there are none.
template <class Part>
struct Outcome {
  std::shared_ptr<const Part> merged;
  std::string error;

  explicit operator bool() const { return merged != nullptr; }
};

/// On whose thread a continuation is called: that of its own device, inside arrive(), or that of
/// another device or the watchdog, which it must not keep busy.
enum class CalledOn { kOwnThread, kForeignThread };

/// One meeting of all devices: each brings a part, and nobody waits. Whoever arrives last merges
/// the parts in the order of devices and calls everybody's continuation.
template <class Part>
class Exchange : public Waiting, public std::enable_shared_from_this<Exchange<Part>> {
 public:
  using Continuation = std::function<void(const Outcome<Part>&, CalledOn)>;

  Exchange(std::string what, std::size_t num_devices)
      : what_(std::move(what)), num_devices_(num_devices) {}
  ~Exchange() override { Watchdog::instance().unwatch(this); }

  /// Calls `then` exactly once: now, later by the last device to arrive, or with an error by
  /// fail(). `then` must not throw.
  void arrive(const Device& device, Part part, Continuation then) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!error_) {
      slots_[device] = {std::move(part), std::move(then)};
      if (slots_.size() == 1 && num_devices_ > 1) {
        Watchdog::instance().watch(this->shared_from_this());
      }
      if (slots_.size() < num_devices_) return;
    }
    if (error_) {
      const Outcome<Part> outcome{nullptr, *error_};
      lock.unlock();
      then(outcome, CalledOn::kOwnThread);
      return;
    }
    const auto slots = take_slots(lock);
    finish(slots, merge(slots), &device);
  }

  /// Every device that waits, and every one that still comes, gets `error`. Without effect once all
  /// have met.
  void fail(const std::string& error) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (error_ || done_) return;
    error_ = error;
    finish(take_slots(lock), {nullptr, error}, nullptr);
  }

  void give_up(std::chrono::duration<double> waited) override {
    std::string present;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      present = device_list(slots_);
    }
    std::ostringstream message;
    message << what_ << " waited " << waited.count() << " s for " << num_devices_
            << " devices (num_devices=" << num_devices_ << ") and only these came: " << present
            << ". Usual causes: a device got no data this step; num_devices is larger than the "
               "number of devices in use; the loop waits for one device (asnumpy, asscalar, "
               "wait_to_read) before it has called the others; or, on CPU contexts, workspaces ran "
               "out (MXNET_CPU_TEMP_COPY).";
    fail(message.str());
  }

 private:
  struct Slot {
    Part part;
    Continuation then;
  };
  using Slots = std::map<Device, Slot>;

  Slots take_slots(std::unique_lock<std::mutex>& lock) {
    done_ = true;
    Slots slots;
    slots.swap(slots_);
    lock.unlock();
    Watchdog::instance().unwatch(this);
    return slots;
  }

  static Outcome<Part> merge(const Slots& slots) {
    try {
      std::vector<const Part*> parts;
      for (const auto& [_, slot] : slots) parts.push_back(&slot.part);
      return {std::make_shared<const Part>(Part::merge(parts)), {}};
    } catch (const std::exception& error) {
      return {nullptr, error.what()};
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
  std::mutex mutex_;
  bool done_ = false;
  std::optional<std::string> error_;
  Slots slots_;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_CORE_EXCHANGE_H_

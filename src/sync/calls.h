#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "common/device.h"
#include "common/watchdog.h"

namespace gluon_syncbn {

/// Counts the training forwards of a layer on each of its devices. Calls with the same number form
/// a round, and may come in any order. Its owner locks it.
///
/// A call is made when MXNet creates its operator, and joins its round when it runs. After a step
/// has failed, its calls must not meet those of later steps. So a failure begins an epoch, in which
/// all devices count from 0 again. Calls that were made before belong to earlier epochs: they are
/// late, and join their own rounds. When the epoch begins depends on the failure:
///
/// - A device that misses a round until the timeout has left it out. Its next call is of the next
///   step, so the epoch begins at once.
/// - If a device fails, absent devices may still come, and get the error of the round. The epoch
///   begins when a device of that round is called again.
///
/// MXNet forgets an error once the program has read it. Later operations of the step compute with
/// arrays that no operation has written, and a trainer may put them into the weights. So the first
/// round of an epoch repeats the error on all devices.
///
/// If MXNet uses one operator for many calls (static_shape, Module), the time of a call is unknown.
/// Such a call counts as made when it runs.
class Calls {
 public:
  using Epoch = std::uint64_t;
  static constexpr Epoch kNow = std::numeric_limits<Epoch>::max();

  /// The number of a round in its epoch.
  struct Key {
    Epoch epoch = 0;
    std::uint64_t index = 0;

    bool operator<(const Key& other) const {
      return std::tie(epoch, index) < std::tie(other.epoch, other.index);
    }
  };
  struct Member {
    Key next;                      ///< the round of its next training forward
    std::uint64_t forwards = 0;    ///< in training mode
    std::uint64_t inferences = 0;  ///< since the last training forward
  };

  explicit Calls(std::size_t num_devices) : num_devices_(num_devices) {}

  /// Notes that a call on `device` has been made. It joins a round later if it is a training
  /// forward, and no operation before it fails.
  Epoch announce(const Device& device);

  /// Whether there are `num_devices` other devices.
  bool is_one_too_many(const Device& device) const;

  /// The round of a training forward. The device will not come to the rounds from `left_out` to
  /// `round`.
  struct Joined {
    Key left_out;
    Key round;
  };
  /// `epoch` is the result of announce(). Throws Error if the device is in a later epoch already.
  Joined join(const Device& device, Epoch epoch);

  /// Notes a call of `device` without training. It joins no round, but messages can name it.
  void saw_inference(const Device& device);

  /// Returns whether a later round repeats the error.
  bool failed(const Key& round, const std::string& error, Absent absent);

  /// The error that this round repeats, or "".
  std::string repeated_by(const Key& round) const;

  /// No device joins a round of an earlier epoch.
  Epoch oldest_epoch() const;

  const std::map<Device, Member>& members() const { return members_; }
  /// The inferences of devices that never trained.
  const std::map<Device, std::uint64_t>& strangers() const { return strangers_; }

 private:
  struct Failure {
    Key round;
    std::string error;
    std::uint64_t dropped_steps;  ///< when it happened
  };

  bool was_dropped() const;
  void begin_epoch(std::optional<Failure> repeated);

  std::size_t num_devices_;
  std::map<Device, Member> members_;
  std::map<Device, std::uint64_t> strangers_;
  Epoch epoch_ = 0;
  std::optional<Failure> failed_;    // in this epoch
  std::optional<Failure> repeated_;  // by the first round of this epoch
};

}  // namespace gluon_syncbn

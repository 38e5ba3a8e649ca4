#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/device.h"
#include "distributed/process_link.h"
#include "sync/round.h"

namespace gluon_syncbn {

/// The devices that synchronize one layer, and the round in which each of them is next.
///
/// Each device counts its training forwards, which its host runs in program order. Calls with the
/// same number form a round; the order of arrival between devices is free. A device that misses a
/// step is one round late. Without the next two rules, it would stay late and meet later steps of
/// its peers.
///
/// - A round that times out brings the absent devices up to date: their next call joins the round
///   that their peers join next. Their next call is the next one made after the timeout. A call
///   that was made before is merely late: it joins the round that has failed and gets its error.
///   The calls after it get the errors of their rounds.
/// - A round that fails at once, because one device has failed, waits for no device, and its other
///   devices are not late. Devices that still come get its error. If a device of the failed round
///   is called again before all have come, the step was broken off, and absent devices are brought
///   up to date.
///
/// A call is made when the host creates its operator. Hosts that use one operator for many calls
/// (static_shape, Module) do not show when a call was made. Such a call counts as one made after
/// the timeout.
class SyncGroup : public std::enable_shared_from_this<SyncGroup> {
 public:
  struct Options {
    std::string key;                     ///< of a named group; see named()
    std::string option = "num_devices";  ///< the user's name for `num_devices`
    std::shared_ptr<ProcessLink> link;   ///< to the other processes, if there are any
    std::vector<int> device_ids;         ///< of the devices that should come; empty: not known
  };

  SyncGroup(std::string layer, std::size_t num_devices, Options options)
      : layer_(std::move(layer)), num_devices_(num_devices), options_(std::move(options)) {}
  SyncGroup(std::string layer, std::size_t num_devices)
      : SyncGroup(std::move(layer), num_devices, Options()) {}

  /// The group that all callers with `options.key` share for as long as one of them holds it.
  static std::shared_ptr<SyncGroup> named(const std::string& layer, std::size_t num_devices,
                                          const Options& options);
  /// The named groups that are held.
  static std::vector<std::shared_ptr<SyncGroup>> all_named();

  /// The number of a call, in the order in which calls are made.
  using Ticket = std::uint64_t;
  static constexpr Ticket kJustMade = std::numeric_limits<Ticket>::max();

  /// A call on `device` has been made and will join if it is a training forward, unless an
  /// operation before it fails.
  Ticket announce(const Device& device);

  /// The round of the next training forward of `device`. Throws Error if there are more devices
  /// than `num_devices`.
  std::shared_ptr<Round> join(const Device& device, Ticket ticket = kJustMade);

  /// `device` was called without training: it does not join, and a message can say so.
  void saw_inference(const Device& device);

  void failed_at_once(std::uint64_t round);
  void timed_out();

  const std::string& layer() const { return layer_; }
  std::size_t num_devices() const { return num_devices_; }
  const Options& options() const { return options_; }

  struct Member {
    std::uint64_t next = 0;        ///< round
    std::uint64_t forwards = 0;    ///< in training mode
    std::uint64_t inferences = 0;  ///< since the last training forward
  };
  /// The calls of all devices so far, for messages.
  struct Calls {
    std::map<Device, Member> members;
    std::map<Device, std::uint64_t> strangers;  ///< inferences of devices that never trained
    std::vector<Device> waiting;                ///< in the first open round
  };
  Calls calls() const;

 private:
  struct OpenRound {
    std::shared_ptr<Round> round;
    std::size_t devices = 0;
  };

  std::shared_ptr<Round> enter(std::uint64_t number);
  void bring_up_to_date();

  const std::string layer_;
  const std::size_t num_devices_;
  const Options options_;
  mutable std::mutex mutex_;
  std::map<Device, Member> members_;
  std::map<Device, std::uint64_t> strangers_;
  std::map<std::uint64_t, OpenRound> open_;  // rounds that not all devices have joined
  Ticket made_ = 0;                          // number of calls
  Ticket first_new_ = 0;                     // the first call after devices were left behind
  std::uint64_t floor_ = 0;                  // the first round that such a call may join
  std::optional<std::uint64_t> failed_;      // the last round that failed at once
};

}  // namespace gluon_syncbn

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/device.h"
#include "distributed/process_rounds.h"
#include "sync/round.h"

namespace gluon_syncbn {

/// The devices that synchronize one layer, and the next round of each device.
///
/// Each device counts its training forwards, which run in program order. Calls with the same number
/// form a round, and may arrive in any order. A device that misses a step is one round late.
/// Without the next two rules, it would stay late and meet later steps of its peers.
///
/// - A round that times out brings the absent devices up to date. Their first call after the
///   timeout joins the round that their peers join next. A call that was made before the timeout is
///   merely late. It joins its own round and gets the error of that round.
/// - A round fails at once if one of its devices fails. Then it waits for no device, and absent
///   devices are not late: they get the error when they come. If a device of the failed round is
///   called again before all have come, the program has broken off the step. Then absent devices
///   are brought up to date.
/// - A round also fails at once if the program stands still.
///
/// A call is made when MXNet creates its operator. If MXNet uses one operator for many calls
/// (static_shape, Module), the time of a call is unknown. Such a call counts as made after the
/// timeout, and as one of the next step after the program stood still.
class SyncGroup : public std::enable_shared_from_this<SyncGroup> {
 public:
  struct Options {
    std::string key;                           ///< of a named group; see named()
    std::string option = "num_devices";        ///< the user's name for `num_devices`
    std::shared_ptr<ProcessRounds> processes;  ///< to the other processes, if there are any
    std::vector<int> device_ids;  ///< of the devices that should come; empty: not known
  };

  SyncGroup(std::string layer, std::size_t num_devices, Options options)
      : layer_(std::move(layer)), num_devices_(num_devices), options_(std::move(options)) {}
  SyncGroup(std::string layer, std::size_t num_devices)
      : SyncGroup(std::move(layer), num_devices, Options()) {}

  /// Returns the group for this key, number of devices and process group. Callers share it for as
  /// long as one of them holds it.
  static std::shared_ptr<SyncGroup> named(const std::string& layer, std::size_t num_devices,
                                          const Options& options);
  /// The named groups that a caller holds.
  static std::vector<std::shared_ptr<SyncGroup>> all_named();

  /// The number of a call, in the order in which calls are made.
  using Ticket = std::uint64_t;
  static constexpr Ticket kJustMade = std::numeric_limits<Ticket>::max();

  /// Notes that a call on `device` has been made. A training forward joins later, unless an
  /// operation before it fails.
  Ticket announce(const Device& device);

  /// Returns the round of the next training forward of `device`. Throws Error if there are more
  /// devices than `num_devices`.
  std::shared_ptr<Round> join(const Device& device, Ticket ticket = kJustMade);

  /// Notes a call of `device` without training. It joins no round, but messages can name it.
  void saw_inference(const Device& device);

  /// Called when a round fails; see the rules above.
  void failed_at_once(std::uint64_t round);
  void timed_out();
  void stood_still(std::uint64_t round);

  const std::string& layer() const { return layer_; }
  std::size_t num_devices() const { return num_devices_; }
  const Options& options() const { return options_; }

  struct Member {
    std::uint64_t next = 0;        ///< the round of its next training forward
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
  void bring_up_to_date(Ticket first_new);

  const std::string layer_;
  const std::size_t num_devices_;
  const Options options_;
  mutable std::mutex mutex_;
  std::map<Device, Member> members_;
  std::map<Device, std::uint64_t> strangers_;
  std::map<std::uint64_t, OpenRound> open_;  // rounds that not all devices have joined
  Ticket made_ = 0;                          // number of calls
  Ticket first_new_ = 0;                     // the first call after devices were brought up to date
  std::uint64_t floor_ = 0;                  // the first round that such a call may join
  std::optional<std::uint64_t> failed_;      // the last round that failed at once
  std::optional<Ticket> stood_still_;        // the first call after the program stood still
};

}  // namespace gluon_syncbn

#ifndef GLUON_SYNCBN_SYNC_SYNC_GROUP_H_
#define GLUON_SYNCBN_SYNC_SYNC_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/device.h"
#include "distributed/collective.h"
#include "norm/moments.h"
#include "norm/signature.h"
#include "sync/membership.h"
#include "sync/reduction.h"

namespace gluon_syncbn {

/// One training forward of one layer on all of its devices, and the backward passes that follow
/// from it. Operators keep the round of their last forward, so that backward meets the peers of
/// that very forward however often the layer is used.
class Round {
 public:
  /// `channel` is empty where this process synchronizes with no other.
  Round(std::shared_ptr<Roll> roll, const std::string& key, std::uint64_t number,
        const std::shared_ptr<Channel>& channel = nullptr);

  /// Fails the round where `device` does not agree with those that came before it.
  void agree(const Device& device, const Agreement& agreement);

  Exchange<Moments>& forward() { return *forward_; }

  /// The exchange of the next backward pass of `device` through this round: its first call meets
  /// the first calls of its peers, its second call (retain_graph) their second calls.
  std::shared_ptr<Exchange<GradientSums>> next_backward(const Device& device);

  /// `device` cannot go on for this reason: whatever waits for it in this round fails at once, now
  /// or later.
  void fail(const Device& device, const std::string& reason);

  /// `device` has left this round out and will not come.
  void skip(const Device& device);

 private:
  void fail(const std::string& error);

  const std::shared_ptr<Roll> roll_;
  const std::uint64_t number_;
  const std::string what_;
  const std::shared_ptr<RoundCrossings> crossings_;  // empty without a channel
  const std::shared_ptr<Exchange<Moments>> forward_;
  std::mutex mutex_;
  std::optional<std::pair<Device, Agreement>> agreement_;
  std::optional<std::string> error_;
  std::map<Device, std::size_t> backward_calls_;
  std::map<std::size_t, std::pair<std::shared_ptr<Exchange<GradientSums>>, std::size_t>> backwards_;
};

/// Where the devices of one layer meet. Rounds are told apart by counting the training forwards of
/// each device, which its host runs in program order; the order of arrival between devices is free.
class Meeting {
 public:
  /// `key` is that of a named meeting, `option` what users know `num_devices` as; `channel` leads
  /// to the other processes, if there are any; `device_ids` are those of Roll.
  Meeting(std::string layer, std::size_t num_devices, std::string key = "",
          std::string option = "num_devices", std::shared_ptr<Channel> channel = nullptr,
          std::vector<int> device_ids = {});

  /// A call on `device` has been made that will join if it is a training forward; see Roll.
  Roll::Ticket announce(const Device& device) { return roll_->announce(device); }

  /// The round of the next training forward of `device`.
  std::shared_ptr<Round> join(const Device& device, Roll::Ticket ticket = Roll::kJustMade);

  /// `device` was called without training: it does not join, and a message can say so.
  void saw_inference(const Device& device) { roll_->saw_inference(device); }

  std::size_t num_devices() const { return roll_->num_devices(); }

  /// The devices that wait for others; "" where none does.
  std::string waiting() const;

  /// The meeting that all who name `key` share for as long as one of them holds it.
  static std::shared_ptr<Meeting> named(const std::string& key, const std::string& layer,
                                        std::size_t num_devices,
                                        const std::string& option = "num_devices",
                                        const std::shared_ptr<Channel>& channel = nullptr,
                                        const std::vector<int>& device_ids = {});
  /// Number of keys that somebody holds.
  static std::size_t count_named();

 private:
  struct Joined {
    std::shared_ptr<Round> round;
    std::size_t devices = 0;
  };

  std::shared_ptr<Round> enter(std::uint64_t number);

  const std::shared_ptr<Roll> roll_;
  const std::string key_;
  const std::shared_ptr<Channel> channel_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Joined> open_;  // that not all devices have joined
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_SYNC_SYNC_GROUP_H_

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "common/device.h"
#include "common/signature.h"
#include "distributed/process_rounds.h"
#include "sync/meeting.h"

namespace gluon_syncbn {

/// One training forward of one layer on all of its devices, and the backward passes that follow
/// from it. Operators keep the round of their last forward, so that backward meets the peers of
/// that very forward however often the layer is used.
class Round {
 public:
  /// `processes` is empty if this process synchronizes with no other.
  Round(const std::shared_ptr<SyncGroup>& group, std::uint64_t number,
        const std::shared_ptr<ProcessRounds>& processes);

  /// Fails the round if `device` does not agree with the devices before it, and throws Error.
  void agree(const Device& device, const Signature& signature);

  std::uint64_t number() const { return number_; }
  Meeting& forward_meeting() { return *forward_; }

  /// The next backward pass of `device` through this round. The first call of a device meets the
  /// first calls of its peers; the second call (retain_graph) meets the second calls.
  std::shared_ptr<Meeting> next_backward(const Device& device);

  /// `device` cannot go on for this reason. Its peers that wait in this round fail now, and others
  /// when they come.
  void fail(const Device& device, const std::string& reason);

  /// `device` has left this round out and will not come.
  void skip(const Device& device);

 private:
  void fail(const std::string& error);

  const std::weak_ptr<SyncGroup> group_;  // weak, because the group owns its open rounds
  const std::size_t num_devices_;
  const std::uint64_t number_;
  const std::shared_ptr<ProcessRound> processes_;  // empty without other processes
  const std::shared_ptr<Meeting> forward_;
  std::mutex mutex_;
  std::optional<std::pair<Device, Signature>> signature_;
  std::optional<std::string> error_;
  std::map<Device, std::size_t> backward_calls_;
  std::map<std::size_t, std::pair<std::shared_ptr<Meeting>, std::size_t>> backwards_;
};

/// The error of the peers of a device that has failed.
std::string failed_on(const Device& device, const std::string& reason);

}  // namespace gluon_syncbn

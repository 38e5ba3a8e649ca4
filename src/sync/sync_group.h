#ifndef GLUON_SYNCBN_SYNC_SYNC_GROUP_H_
#define GLUON_SYNCBN_SYNC_SYNC_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/device.h"
#include "distributed/process_link.h"
#include "sync/membership.h"
#include "sync/round.h"

namespace gluon_syncbn {

/// The devices that synchronize one layer. Rounds are told apart by counting the training forwards
/// of each device, which its host runs in program order; the order of arrival between devices is
/// free.
class SyncGroup {
 public:
  struct Options {
    std::string key;                     ///< of a named group; see named()
    std::string option = "num_devices";  ///< what users know `num_devices` as
    std::shared_ptr<ProcessLink> link;   ///< to the other processes, if there are any
    std::vector<int> device_ids;         ///< those of Membership
  };

  SyncGroup(std::string layer, std::size_t num_devices, const Options& options);
  SyncGroup(std::string layer, std::size_t num_devices)
      : SyncGroup(std::move(layer), num_devices, Options()) {}

  /// A call on `device` has been made that will join if it is a training forward; see Membership.
  Membership::Ticket announce(const Device& device) { return members_->announce(device); }

  /// The round of the next training forward of `device`.
  std::shared_ptr<Round> join(const Device& device,
                              Membership::Ticket ticket = Membership::kJustMade);

  /// `device` was called without training: it does not join, and a message can say so.
  void saw_inference(const Device& device) { members_->saw_inference(device); }

  std::size_t num_devices() const { return members_->num_devices(); }

  /// The devices that wait for others; "" if none does.
  std::string waiting() const;

  /// The group that all who name `options.key` share for as long as one of them holds it.
  static std::shared_ptr<SyncGroup> named(const std::string& layer, std::size_t num_devices,
                                          const Options& options);
  /// Number of keys that somebody holds.
  static std::size_t count_named();

 private:
  struct Joined {
    std::shared_ptr<Round> round;
    std::size_t devices = 0;
  };

  std::shared_ptr<Round> enter(std::uint64_t number);

  std::shared_ptr<Membership> members_;
  const std::shared_ptr<ProcessLink> link_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Joined> open_;  // that not all devices have joined
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_SYNC_SYNC_GROUP_H_

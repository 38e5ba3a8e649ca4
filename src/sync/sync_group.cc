#include "sync/sync_group.h"

#include <algorithm>
#include <tuple>

#include "common/error.h"
#include "common/per_process.h"
#include "common/weak_registry.h"

namespace gluon_syncbn {
namespace {

constexpr int kNoProcesses = -1;
using Id = std::tuple<std::string, std::size_t, int>;  // key, number of devices, process group
using NamedSyncGroups = PerProcess<WeakRegistry<Id, SyncGroup>>;

}  // namespace

std::shared_ptr<SyncGroup> SyncGroup::named(const std::string& layer, std::size_t num_devices,
                                            const Options& options) {
  const int processes = options.processes ? options.processes->group() : kNoProcesses;
  return NamedSyncGroups::instance().find_or_make({options.key, num_devices, processes}, [&] {
    return std::make_shared<SyncGroup>(layer, num_devices, options);
  });
}

std::vector<std::shared_ptr<SyncGroup>> SyncGroup::all_named() {
  return NamedSyncGroups::instance().held();
}

SyncGroup::Ticket SyncGroup::announce(const Device& device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = members_.find(device);
  // A device of the failed round is called again, so the program has broken off that step.
  if (failed_ && found != members_.end() && found->second.next > *failed_) {
    bring_up_to_date(made_);
  }
  return made_++;
}

std::shared_ptr<Round> SyncGroup::join(const Device& device, Ticket ticket) {
  std::vector<std::shared_ptr<Round>> skipped;
  std::shared_ptr<Round> round;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!members_.count(device) && members_.size() == num_devices_) {
      throw Error(layer_ + " synchronizes " + device_list(members_) + " (" + options_.option + "=" +
                  std::to_string(num_devices_) + ") and was called on " + device.name() +
                  " as well. That number should be the number of devices in use. After you move a "
                  "hybridized network to other contexts, call hybridize() again.");
    }
    if (ticket == kJustMade && stood_still_) bring_up_to_date(*stood_still_);
    Member& member = members_[device];
    std::uint64_t number = member.next;
    if (ticket >= first_new_) {
      while (number < floor_) skipped.push_back(enter(number++));
    }
    round = enter(number);
    member.next = number + 1;
    ++member.forwards;
    member.inferences = 0;
    strangers_.erase(device);
  }
  for (const auto& other : skipped) other->skip(device);
  return round;
}

std::shared_ptr<Round> SyncGroup::enter(std::uint64_t number) {
  OpenRound& open = open_[number];
  if (!open.round)
    open.round = std::make_shared<Round>(shared_from_this(), number, options_.processes);
  auto round = open.round;
  if (++open.devices == num_devices_) open_.erase(number);
  return round;
}

void SyncGroup::saw_inference(const Device& device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = members_.find(device);
  if (found != members_.end()) {
    ++found->second.inferences;
  } else if (members_.size() < num_devices_) {
    ++strangers_[device];
  }
}

void SyncGroup::failed_at_once(std::uint64_t round) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failed_ = round;
}

void SyncGroup::timed_out() {
  const std::lock_guard<std::mutex> lock(mutex_);
  bring_up_to_date(made_);
}

void SyncGroup::stood_still(std::uint64_t round) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failed_ = round;
  stood_still_ = made_;
}

void SyncGroup::bring_up_to_date(Ticket first_new) {
  for (const auto& [_, member] : members_) floor_ = std::max(floor_, member.next);
  first_new_ = first_new;
  failed_.reset();
  stood_still_.reset();
}

SyncGroup::Calls SyncGroup::calls() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Calls calls{members_, strangers_, {}};
  if (open_.empty()) return calls;
  for (const auto& [device, member] : members_) {
    if (member.next > open_.begin()->first) calls.waiting.push_back(device);
  }
  return calls;
}

}  // namespace gluon_syncbn

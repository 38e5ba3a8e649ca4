#include "sync/sync_group.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "common/error.h"
#include "common/list_text.h"
#include "common/per_process.h"
#include "common/weak_registry.h"

namespace gluon_syncbn {
namespace {

constexpr int kNoProcesses = -1;
using Id = std::tuple<std::string, std::size_t, int>;  // key, number of devices, process group
using NamedSyncGroups = PerProcess<WeakRegistry<Id, SyncGroup>>;

std::string counted(std::uint64_t number, const std::string& thing) {
  return std::to_string(number) + " " + thing + (number == 1 ? "" : "s");
}

}  // namespace

std::shared_ptr<SyncGroup> SyncGroup::named(const std::string& layer, std::size_t num_devices,
                                            const Options& options) {
  const int processes = options.link ? options.link->group().id() : kNoProcesses;
  return NamedSyncGroups::instance().find_or_make({options.key, num_devices, processes}, [&] {
    return std::make_shared<SyncGroup>(layer, num_devices, options);
  });
}

std::size_t SyncGroup::count_named() { return NamedSyncGroups::instance().held().size(); }

SyncGroup::Ticket SyncGroup::announce(const Device& device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = members_.find(device);
  if (failed_ && found != members_.end() && found->second.next > *failed_) bring_up_to_date();
  return made_++;
}

std::shared_ptr<Round> SyncGroup::join(const Device& device, Ticket ticket) {
  std::vector<std::shared_ptr<Round>> skipped;
  std::shared_ptr<Round> round;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!members_.count(device) && members_.size() == num_devices_) {
      throw Error(layer_ + " synchronizes " + device_list(members_) + " (num_devices=" +
                  std::to_string(num_devices_) + ") and was called on " + device.name() +
                  " as well. Set num_devices to the number of devices in use; after moving a "
                  "hybridized network to other contexts call hybridize() again.");
    }
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
  if (!open.round) open.round = std::make_shared<Round>(shared_from_this(), number, options_.link);
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
  bring_up_to_date();
}

void SyncGroup::bring_up_to_date() {
  for (const auto& [_, member] : members_) floor_ = std::max(floor_, member.next);
  first_new_ = made_;
  failed_.reset();
}

/// Returns the devices that are not `known`, or none if the ids are uncertain: a graph may run on
/// other devices than it was made for.
std::vector<Device> SyncGroup::never_called(const std::set<Device>& known) const {
  std::set<Device> awaited;
  if (!known.empty()) {
    for (const int id : options_.device_ids) awaited.insert({known.begin()->type, id});
  }
  std::vector<Device> others;
  std::set_difference(awaited.begin(), awaited.end(), known.begin(), known.end(),
                      std::back_inserter(others));
  if (known.size() + others.size() != num_devices_) others.clear();
  return others;
}

std::string SyncGroup::text(const Device& device, const Member& member, bool counts) const {
  if (!counts) return device.name();
  std::string text = device.name() + " (" + counted(member.forwards, "training forward");
  if (member.inferences > 0) {
    text += ", then " + std::to_string(member.inferences) + " in inference mode";
  }
  return text + ")";
}

std::string SyncGroup::present_text(const std::set<Device>& present, bool counts) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string list;
  for (const Device& device : present) {
    const auto found = members_.find(device);
    append_item(&list, text(device, found == members_.end() ? Member() : found->second,
                            counts && found != members_.end()));
  }
  return list.empty() ? "none" : list;
}

std::string SyncGroup::missing_text(const std::set<Device>& present, bool counts) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string list;
  std::set<Device> known = present;
  for (const auto& [device, member] : members_) {
    if (known.insert(device).second) append_item(&list, text(device, member, counts));
  }
  if (known.size() < num_devices_) {
    const auto strangers = never_called(known);
    for (const Device& device : strangers) {
      append_item(&list, device.name() + " (never called in training)");
    }
    if (strangers.empty()) {
      append_item(&list,
                  counted(num_devices_ - known.size(), "device") + " never called in training");
    }
  }
  return list.empty() ? "none" : list;
}

std::string SyncGroup::inferring_text(const std::set<Device>& present) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string list;
  for (const auto& [device, member] : members_) {
    if (member.inferences > 0 && !present.count(device)) append_item(&list, device.name());
  }
  for (const auto& [device, _] : strangers_) append_item(&list, device.name());
  return list;
}

std::string SyncGroup::waiting_text() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string list;
  if (open_.empty()) return list;
  for (const auto& [device, member] : members_) {
    if (member.next > open_.begin()->first) append_item(&list, device.name());
  }
  return list;
}

std::string SyncGroup::elsewhere_text() const {
  std::string text;
  if (options_.key.empty()) return text;
  for (const auto& [id, other] : NamedSyncGroups::instance().held()) {
    if (std::get<0>(id) != options_.key || std::get<1>(id) == num_devices_) continue;
    if (const auto waiting = other->waiting_text(); !waiting.empty()) {
      text += "Under the same key, devices wait with num_devices=" +
              std::to_string(other->num_devices()) + ": " + waiting +
              "; all devices should give the same number. ";
    }
  }
  return text;
}

}  // namespace gluon_syncbn

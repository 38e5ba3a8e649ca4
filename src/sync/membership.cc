#include "sync/membership.h"

#include <algorithm>
#include <iterator>

#include "common/error.h"
#include "common/list_text.h"

namespace gluon_syncbn {
namespace {

std::string counted(std::uint64_t number, const std::string& thing) {
  return std::to_string(number) + " " + thing + (number == 1 ? "" : "s");
}

}  // namespace

Membership::Ticket Membership::announce(const Device& device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = members_.find(device);
  if (failed_ && found != members_.end() && found->second.next > *failed_) bring_up_to_date();
  return made_++;
}

Membership::Place Membership::next(const Device& device, Ticket ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!members_.count(device) && members_.size() == num_devices_) {
    throw Error(layer_ + " synchronizes " + device_list(members_) + " (num_devices=" +
                std::to_string(num_devices_) + ") and was called on " + device.name() +
                " as well. Set num_devices to the number of devices in use; after moving a "
                "hybridized network to other contexts call hybridize() again.");
  }
  Member& member = members_[device];
  Place place{member.next, member.next};
  if (ticket >= first_new_) place.number = std::max(place.number, floor_);
  member.next = place.number + 1;
  ++member.forwards;
  member.inferences = 0;
  strangers_.erase(device);
  return place;
}

void Membership::saw_inference(const Device& device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = members_.find(device);
  if (found != members_.end()) {
    ++found->second.inferences;
  } else if (members_.size() < num_devices_) {
    ++strangers_[device];
  }
}

void Membership::failed_at_once(std::uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failed_ = number;
}

void Membership::timed_out() {
  const std::lock_guard<std::mutex> lock(mutex_);
  bring_up_to_date();
}

void Membership::bring_up_to_date() {
  for (const auto& [_, member] : members_) floor_ = std::max(floor_, member.next);
  first_new_ = made_;
  failed_.reset();
}

/// The devices that are not `known`; none if they cannot be told for certain, as for a graph that
/// was loaded on other devices than it was made for.
std::vector<Device> Membership::never_called(const std::set<Device>& known) const {
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

std::string Membership::text(const Device& device, const Member& member, bool counts) const {
  if (!counts) return device.name();
  std::string text = device.name() + " (" + counted(member.forwards, "training forward");
  if (member.inferences > 0) {
    text += ", then " + std::to_string(member.inferences) + " in inference mode";
  }
  return text + ")";
}

std::string Membership::present_text(const std::set<Device>& present, bool counts) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string list;
  for (const Device& device : present) {
    const auto found = members_.find(device);
    append_item(&list, text(device, found == members_.end() ? Member() : found->second,
                            counts && found != members_.end()));
  }
  return list.empty() ? "none" : list;
}

std::string Membership::missing_text(const std::set<Device>& present, bool counts) const {
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

std::string Membership::inferring_text(const std::set<Device>& present) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string list;
  for (const auto& [device, member] : members_) {
    if (member.inferences > 0 && !present.count(device)) append_item(&list, device.name());
  }
  for (const auto& [device, _] : strangers_) append_item(&list, device.name());
  return list;
}

std::string Membership::joined_text(std::uint64_t number) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string list;
  for (const auto& [device, member] : members_) {
    if (member.next > number) append_item(&list, device.name());
  }
  return list;
}

}  // namespace gluon_syncbn

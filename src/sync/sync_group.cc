#include "sync/sync_group.h"

#include <tuple>
#include <utility>

#include "common/per_process.h"
#include "common/weak_registry.h"

namespace gluon_syncbn {
namespace {

constexpr int kNoProcesses = -1;
using Id = std::tuple<std::string, std::size_t, int>;  // key, number of devices, process group
using NamedSyncGroups = PerProcess<WeakRegistry<Id, SyncGroup>>;

/// Who waits under `key` for another number of devices, in whole sentences.
std::string waiting_for_others(const std::string& key, std::size_t num_devices) {
  std::string text;
  for (const auto& [id, other] : NamedSyncGroups::instance().held()) {
    if (std::get<0>(id) != key || std::get<1>(id) == num_devices) continue;
    if (const auto waiting = other->waiting(); !waiting.empty()) {
      text +=
          "Under the same key these wait with num_devices=" + std::to_string(other->num_devices()) +
          ": " + waiting + "; all devices should give the same number. ";
    }
  }
  return text;
}

}  // namespace

SyncGroup::SyncGroup(std::string layer, std::size_t num_devices, const Options& options)
    : link_(options.link) {
  const auto elsewhere = [key = options.key, num_devices] {
    return key.empty() ? "" : waiting_for_others(key, num_devices);
  };
  members_ = std::make_shared<Membership>(
      std::move(layer), num_devices,
      Membership::Options{options.option, options.device_ids, elsewhere});
}

std::shared_ptr<Round> SyncGroup::join(const Device& device, Membership::Ticket ticket) {
  std::vector<std::shared_ptr<Round>> skipped;
  std::shared_ptr<Round> round;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Membership::Place place = members_->next(device, ticket);
    for (auto number = place.first_skipped; number < place.number; ++number) {
      skipped.push_back(enter(number));
    }
    round = enter(place.number);
  }
  for (const auto& other : skipped) other->skip(device);
  return round;
}

std::shared_ptr<Round> SyncGroup::enter(std::uint64_t number) {
  Joined& joined = open_[number];
  if (!joined.round) joined.round = std::make_shared<Round>(members_, number, link_);
  auto round = joined.round;
  if (++joined.devices == num_devices()) open_.erase(number);
  return round;
}

std::string SyncGroup::waiting() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return open_.empty() ? "" : members_->joined_text(open_.begin()->first);
}

std::shared_ptr<SyncGroup> SyncGroup::named(const std::string& layer, std::size_t num_devices,
                                            const Options& options) {
  const int processes = options.link ? options.link->group()->id() : kNoProcesses;
  return NamedSyncGroups::instance().find_or_make({options.key, num_devices, processes}, [&] {
    return std::make_shared<SyncGroup>(layer, num_devices, options);
  });
}

std::size_t SyncGroup::count_named() { return NamedSyncGroups::instance().held().size(); }

}  // namespace gluon_syncbn

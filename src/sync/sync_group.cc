#include "sync/sync_group.h"

#include <tuple>
#include <utility>

#include "common/per_process.h"

namespace gluon_syncbn {
namespace {

class NamedSyncGroups {
 public:
  static NamedSyncGroups& instance() { return PerProcess<NamedSyncGroups>::instance(); }

  std::shared_ptr<SyncGroup> find_or_create(const std::string& layer, std::size_t num_devices,
                                            const SyncGroup::Options& options) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto id = std::make_tuple(options.key, num_devices,
                                    options.link ? options.link->group()->id() : kNoProcesses);
    if (const auto found = groups_.find(id); found != groups_.end()) {
      if (auto group = found->second.lock()) return group;
    }
    const auto release = [id](SyncGroup* group) {
      delete group;
      instance().forget(id);
    };
    std::shared_ptr<SyncGroup> group(new SyncGroup(layer, num_devices, options), release);
    groups_[id] = group;
    return group;
  }

  /// Who waits under `key` for another number of devices, in whole sentences.
  std::string waiting_for_others(const std::string& key, std::size_t num_devices) {
    std::string text;
    for (const auto& other : others(key, num_devices)) {
      if (const auto waiting = other->waiting(); !waiting.empty()) {
        text += "Under the same key these wait with num_devices=" +
                std::to_string(other->num_devices()) + ": " + waiting +
                "; all devices should give the same number. ";
      }
    }
    return text;
  }

  std::size_t size() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return groups_.size();
  }

 private:
  static constexpr int kNoProcesses = -1;
  using Id = std::tuple<std::string, std::size_t, int>;  // key, number of devices, process group

  std::vector<std::shared_ptr<SyncGroup>> others(const std::string& key, std::size_t num_devices) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<SyncGroup>> found;
    for (auto at = groups_.lower_bound({key, 0, kNoProcesses});
         at != groups_.end() && std::get<0>(at->first) == key; ++at) {
      if (std::get<1>(at->first) == num_devices) continue;
      if (auto group = at->second.lock()) found.push_back(std::move(group));
    }
    return found;
  }

  void forget(const Id& id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    // A successor may have taken the place since the last release.
    const auto found = groups_.find(id);
    if (found != groups_.end() && found->second.expired()) groups_.erase(found);
  }

  std::mutex mutex_;
  std::map<Id, std::weak_ptr<SyncGroup>> groups_;
};

}  // namespace

SyncGroup::SyncGroup(std::string layer, std::size_t num_devices, const Options& options)
    : link_(options.link) {
  const auto elsewhere = [key = options.key, num_devices] {
    return key.empty() ? "" : NamedSyncGroups::instance().waiting_for_others(key, num_devices);
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
  return NamedSyncGroups::instance().find_or_create(layer, num_devices, options);
}

std::size_t SyncGroup::count_named() { return NamedSyncGroups::instance().size(); }

}  // namespace gluon_syncbn

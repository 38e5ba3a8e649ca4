#include "core/rendezvous.h"

#include <sstream>

#include "core/error.h"

namespace gluon_syncbn {
namespace {

class NamedMeetings {
 public:
  static NamedMeetings& instance() {
    // Never destroyed: operators may be released during static destruction.
    static NamedMeetings& meetings = *new NamedMeetings();
    return meetings;
  }

  std::shared_ptr<Meeting> find_or_create(const std::string& key, const std::string& layer,
                                          std::size_t num_devices) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto id = std::make_pair(key, num_devices);
    if (const auto found = meetings_.find(id); found != meetings_.end()) {
      if (auto meeting = found->second.lock()) return meeting;
    }
    const auto release = [this, id](Meeting* meeting) {
      delete meeting;
      const std::lock_guard<std::mutex> release_lock(mutex_);
      // A successor may have taken the place between the last release and this deleter.
      const auto found = meetings_.find(id);
      if (found != meetings_.end() && found->second.expired()) meetings_.erase(found);
    };
    std::shared_ptr<Meeting> meeting(new Meeting(layer, num_devices), release);
    meetings_[id] = meeting;
    return meeting;
  }

  std::size_t size() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return meetings_.size();
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, std::size_t>, std::weak_ptr<Meeting>> meetings_;
};

}  // namespace

std::optional<std::string> Agreement::difference(const Agreement& other) const {
  std::ostringstream text;
  text.precision(17);
  if (channels != other.channels) {
    text << "channels " << channels << " and " << other.channels;
  } else if (dtype != other.dtype) {
    text << "dtype " << dtype << " and " << other.dtype;
  } else if (eps != other.eps) {
    text << "eps " << eps << " and " << other.eps;
  } else if (momentum != other.momentum) {
    text << "momentum " << momentum << " and " << other.momentum;
  } else {
    return std::nullopt;
  }
  return text.str();
}

Round::Round(const std::string& layer, std::uint64_t number, std::size_t num_devices)
    : what_(layer + " round " + std::to_string(number)),
      num_devices_(num_devices),
      forward_(std::make_shared<Exchange<Moments>>(what_ + " forward", num_devices)) {}

void Round::agree(const Device& device, const Agreement& agreement) {
  std::string error;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!agreement_) agreement_ = {device, agreement};
    const auto difference = agreement_->second.difference(agreement);
    if (!difference) return;
    error = what_ + ": devices " + agreement_->first.name() + " and " + device.name() +
            " differ: " + *difference;
  }
  forward_->fail(error);
  throw Error(error);
}

std::shared_ptr<Exchange<GradientSums>> Round::next_backward(const Device& device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::size_t call = backward_calls_[device]++;
  auto& [exchange, devices] = backwards_[call];
  if (!exchange) {
    exchange = std::make_shared<Exchange<GradientSums>>(what_ + " backward", num_devices_);
  }
  auto joined = exchange;
  if (++devices == num_devices_) backwards_.erase(call);
  return joined;
}

Meeting::Meeting(std::string layer, std::size_t num_devices)
    : layer_(std::move(layer)), num_devices_(num_devices) {}

std::shared_ptr<Round> Meeting::join(const Device& device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!members_.count(device) && members_.size() == num_devices_) {
    throw Error(layer_ + " synchronizes " + device_list(members_) + " (num_devices=" +
                std::to_string(num_devices_) + ") and was called on " + device.name() +
                " as well. Set num_devices to the number of devices in use; after moving a "
                "hybridized network to other contexts call hybridize() again.");
  }
  const std::uint64_t number = members_[device]++;
  Joined& joined = open_[number];
  if (!joined.round) joined.round = std::make_shared<Round>(layer_, number, num_devices_);
  auto round = joined.round;
  if (++joined.devices == num_devices_) open_.erase(number);
  return round;
}

std::shared_ptr<Meeting> Meeting::named(const std::string& key, const std::string& layer,
                                        std::size_t num_devices) {
  return NamedMeetings::instance().find_or_create(key, layer, num_devices);
}

std::size_t Meeting::count_named() { return NamedMeetings::instance().size(); }

}  // namespace gluon_syncbn

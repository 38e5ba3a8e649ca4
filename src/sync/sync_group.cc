#include "sync/sync_group.h"

#include <tuple>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/per_process.h"

namespace gluon_syncbn {
namespace {

class NamedMeetings {
 public:
  static NamedMeetings& instance() { return PerProcess<NamedMeetings>::instance(); }

  std::shared_ptr<Meeting> find_or_create(const std::string& key, const std::string& layer,
                                          std::size_t num_devices, const std::string& option,
                                          const std::shared_ptr<Channel>& channel,
                                          const std::vector<int>& device_ids) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto id = std::make_tuple(key, num_devices, channel ? channel->group()->id() : kNoGroup);
    if (const auto found = meetings_.find(id); found != meetings_.end()) {
      if (auto meeting = found->second.lock()) return meeting;
    }
    const auto release = [id](Meeting* meeting) {
      delete meeting;
      instance().forget(id);
    };
    std::shared_ptr<Meeting> meeting(
        new Meeting(layer, num_devices, key, option, channel, device_ids), release);
    meetings_[id] = meeting;
    return meeting;
  }

  /// Those under `key` for another number of devices.
  std::vector<std::shared_ptr<Meeting>> others(const std::string& key, std::size_t num_devices) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<Meeting>> found;
    for (auto at = meetings_.lower_bound({key, 0, kNoGroup});
         at != meetings_.end() && std::get<0>(at->first) == key; ++at) {
      if (std::get<1>(at->first) == num_devices) continue;
      if (auto meeting = at->second.lock()) found.push_back(std::move(meeting));
    }
    return found;
  }

  std::size_t size() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return meetings_.size();
  }

 private:
  static constexpr int kNoGroup = -1;
  using Id = std::tuple<std::string, std::size_t, int>;  // key, number of devices, process group

  void forget(const Id& id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    // A successor may have taken the place since the last release.
    const auto found = meetings_.find(id);
    if (found != meetings_.end() && found->second.expired()) meetings_.erase(found);
  }

  std::mutex mutex_;
  std::map<Id, std::weak_ptr<Meeting>> meetings_;
};

constexpr const char* kWaitingCauses =
    "the loop waits for one device (asnumpy, asscalar, wait_to_read) before it has called the "
    "others; an operation that failed before on a missing device, whose error nobody has read "
    "(mx.nd.waitall() reads all); an exception in the thread of a missing device, which GluonCV's "
    "DataParallelModel(sync=True) keeps to itself (call the network once before the threads); or, "
    "on CPU contexts, workspaces ran out (set MXNET_CPU_TEMP_COPY "
    "to about 5 x norm layers x (devices - 1) or more).";

class ForwardAttendance : public Attendance {
 public:
  ForwardAttendance(std::shared_ptr<Roll> roll, std::string key)
      : roll_(std::move(roll)), key_(std::move(key)) {}

  std::string describe(const std::set<Device>& present) const override {
    std::string text = "Came: " + roll_->present_text(present, true) +
                       ". Missing: " + roll_->missing_text(present, true) + ". ";
    if (const auto inferring = roll_->inferring_text(present); !inferring.empty()) {
      text += "Called in inference mode, without autograd.record() or train_mode: " + inferring +
              "; all devices should train, or none. ";
    }
    if (!key_.empty()) {
      for (const auto& other : NamedMeetings::instance().others(key_, roll_->num_devices())) {
        if (const auto waiting = other->waiting(); !waiting.empty()) {
          text += "Under the same key these wait with num_devices=" +
                  std::to_string(other->num_devices()) + ": " + waiting +
                  "; all devices should give the same number. ";
        }
      }
    }
    return text +
           "Usual causes: a device got no data this step; num_devices is larger than the number "
           "of devices in use; a branch that calls the layer was taken on some devices only, or "
           "more often on one than on another; " +
           kWaitingCauses;
  }

  void timed_out() override { roll_->timed_out(); }

 private:
  const std::shared_ptr<Roll> roll_;
  const std::string key_;
};

class BackwardAttendance : public Attendance {
 public:
  explicit BackwardAttendance(std::shared_ptr<Roll> roll) : roll_(std::move(roll)) {}

  std::string describe(const std::set<Device>& present) const override {
    return "Came: " + roll_->present_text(present, false) +
           ". Missing: " + roll_->missing_text(present, false) +
           ". Usual causes: backward was called for some devices only (give the losses of all "
           "devices to autograd.backward, or call backward() of each); the output of the layer "
           "does not reach the loss on a device; " +
           kWaitingCauses;
  }

  void timed_out() override {}

 private:
  const std::shared_ptr<Roll> roll_;
};

}  // namespace

Round::Round(std::shared_ptr<Roll> roll, const std::string& key, std::uint64_t number,
             const std::shared_ptr<Channel>& channel)
    : roll_(std::move(roll)),
      number_(number),
      what_(roll_->layer() + " round " + std::to_string(number)),
      crossings_(channel ? std::make_shared<RoundCrossings>(channel) : nullptr),
      forward_(std::make_shared<Exchange<Moments>>(
          what_ + " forward", roll_->num_devices(), std::make_shared<ForwardAttendance>(roll_, key),
          roll_->option(), crossings_ ? crossings_->forward() : nullptr)) {}

void Round::agree(const Device& device, const Agreement& agreement) {
  std::string error;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!agreement_) {
      agreement_ = {device, agreement};
      if (crossings_) crossings_->agree(agreement);
    }
    const auto difference = agreement_->second.difference(agreement);
    if (!difference) return;
    error =
        "devices " + agreement_->first.name() + " and " + device.name() + " differ: " + *difference;
  }
  fail(error);
  throw Error(what_ + " forward: " + error);
}

void Round::fail(const Device& device, const std::string& reason) {
  fail("failed on " + device.name() + ": " + reason);
}

void Round::skip(const Device& device) {
  forward_->fail(device.name() + " was left behind: it was not called in this round, and is in a " +
                 "later one now");
}

void Round::fail(const std::string& error) {
  std::vector<std::shared_ptr<Exchange<GradientSums>>> waiting;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!error_) error_ = error;
    for (const auto& [_, backward] : backwards_) waiting.push_back(backward.first);
  }
  roll_->failed_at_once(number_);
  forward_->fail(error);
  for (const auto& backward : waiting) backward->fail(error);
}

std::shared_ptr<Exchange<GradientSums>> Round::next_backward(const Device& device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::size_t call = backward_calls_[device]++;
  auto& [exchange, devices] = backwards_[call];
  if (!exchange) {
    exchange = std::make_shared<Exchange<GradientSums>>(
        what_ + " backward", roll_->num_devices(), std::make_shared<BackwardAttendance>(roll_),
        roll_->option(), crossings_ ? crossings_->backward() : nullptr);
    if (error_) exchange->fail(*error_);
  }
  auto joined = exchange;
  if (++devices == roll_->num_devices()) backwards_.erase(call);
  return joined;
}

Meeting::Meeting(std::string layer, std::size_t num_devices, std::string key, std::string option,
                 std::shared_ptr<Channel> channel, std::vector<int> device_ids)
    : roll_(std::make_shared<Roll>(std::move(layer), num_devices, std::move(option),
                                   std::move(device_ids))),
      key_(std::move(key)),
      channel_(std::move(channel)) {}

std::shared_ptr<Round> Meeting::join(const Device& device, Roll::Ticket ticket) {
  std::vector<std::shared_ptr<Round>> skipped;
  std::shared_ptr<Round> round;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Roll::Place place = roll_->next(device, ticket);
    for (auto number = place.first_skipped; number < place.number; ++number) {
      skipped.push_back(enter(number));
    }
    round = enter(place.number);
  }
  for (const auto& other : skipped) other->skip(device);
  return round;
}

std::shared_ptr<Round> Meeting::enter(std::uint64_t number) {
  Joined& joined = open_[number];
  if (!joined.round) joined.round = std::make_shared<Round>(roll_, key_, number, channel_);
  auto round = joined.round;
  if (++joined.devices == roll_->num_devices()) open_.erase(number);
  return round;
}

std::string Meeting::waiting() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return open_.empty() ? "" : roll_->joined_text(open_.begin()->first);
}

std::shared_ptr<Meeting> Meeting::named(const std::string& key, const std::string& layer,
                                        std::size_t num_devices, const std::string& option,
                                        const std::shared_ptr<Channel>& channel,
                                        const std::vector<int>& device_ids) {
  return NamedMeetings::instance().find_or_create(key, layer, num_devices, option, channel,
                                                  device_ids);
}

std::size_t Meeting::count_named() { return NamedMeetings::instance().size(); }

}  // namespace gluon_syncbn

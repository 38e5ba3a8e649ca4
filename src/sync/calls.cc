#include "sync/calls.h"

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "sync/failed_steps.h"

namespace gluon_syncbn {
namespace {

constexpr const char* kRepeated =
    "an earlier step has failed, and MXNet may have updated weights with arrays that no operation "
    "has written. Restore the weights, or call gluon_syncbn.drop_step(), which takes this error. "
    "It was: ";

}  // namespace

Calls::Epoch Calls::announce(const Device& device) {
  const auto found = members_.find(device);
  const bool is_known = found != members_.end();
  if (was_dropped()) {
    begin_epoch(std::nullopt);
  } else if (failed_ && is_known && failed_->round < found->second.next) {
    begin_epoch(std::move(failed_));
  }
  return epoch_;
}

bool Calls::was_dropped() const {
  const auto is_before_now = [now = FailedSteps::dropped()](const auto& failure) {
    return failure && failure->dropped_steps != now;
  };
  const bool is_repeated_to_all = oldest_epoch() == epoch_;
  return is_before_now(failed_) || (!is_repeated_to_all && is_before_now(repeated_));
}

void Calls::begin_epoch(std::optional<Failure> repeated) {
  ++epoch_;
  repeated_ = std::move(repeated);
  failed_.reset();
}

bool Calls::is_one_too_many(const Device& device) const {
  return members_.size() == num_devices_ && members_.count(device) == 0;
}

Calls::Joined Calls::join(const Device& device, Epoch epoch) {
  if (epoch == kNow) epoch = announce(device);
  Member& member = members_[device];
  if (epoch < member.next.epoch) {
    throw Error("this call was made before a step failed, and comes after calls of later steps");
  }
  const Key left_out = member.next;
  if (member.next.epoch < epoch) member.next = {epoch, 0};
  const Key round = member.next;
  ++member.next.index;
  ++member.forwards;
  member.inferences = 0;
  strangers_.erase(device);
  return {left_out, round};
}

void Calls::saw_inference(const Device& device) {
  const auto found = members_.find(device);
  if (found != members_.end()) {
    ++found->second.inferences;
  } else if (members_.size() < num_devices_) {
    ++strangers_[device];
  }
}

bool Calls::failed(const Key& round, const std::string& error, Absent absent) {
  // Other processes repeat errors too. Without an end here, each process would repeat the other's.
  const bool is_repeated = error.find(kRepeated) != std::string::npos;
  if (round.epoch != epoch_ || is_repeated) return false;
  if (!failed_) failed_ = Failure{round, error, FailedSteps::dropped()};
  failed_->round = std::max(failed_->round, round);
  if (absent == Absent::kHaveLeftItOut) begin_epoch(std::move(failed_));
  return true;
}

std::string Calls::repeated_by(const Key& round) const {
  const bool repeats = repeated_ && round.epoch == epoch_ && round.index == 0;
  return repeats ? kRepeated + repeated_->error : "";
}

Calls::Epoch Calls::oldest_epoch() const {
  if (members_.size() < num_devices_) return 0;
  Epoch oldest = epoch_;
  for (const auto& [_, member] : members_) oldest = std::min(oldest, member.next.epoch);
  return oldest;
}

}  // namespace gluon_syncbn

#include "sync/round.h"

#include <utility>
#include <vector>

#include "common/error.h"
#include "sync/sync_group.h"

namespace gluon_syncbn {

Round::Round(const std::shared_ptr<SyncGroup>& group, std::uint64_t number,
             const std::shared_ptr<ProcessRounds>& processes)
    : group_(group),
      num_devices_(group->num_devices()),
      number_(number),
      processes_(processes ? processes->next_round() : nullptr),
      forward_(std::make_shared<Meeting>(group, number_, Direction::kForward, processes_)) {}

void Round::agree(const Device& device, const Signature& signature) {
  std::string error;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!signature_) {
      signature_ = {device, signature};
      if (processes_) processes_->agree(signature);
    }
    const auto& [first, expected] = *signature_;
    auto difference = expected.difference(signature);
    if (first.type != device.type) {
      difference = "contexts " + first.type + " and " + device.type +
                   ", which cannot meet: use CPU contexts alone, or GPU contexts alone";
    }
    if (!difference) return;
    error = "devices " + first.name() + " and " + device.name() + " differ: " + *difference;
  }
  fail(error);
  throw Error(forward_->name() + ": " + error);
}

void Round::fail(const Device& device, const std::string& reason) {
  fail(failed_on(device, reason));
}

void Round::skip(const Device& device) {
  forward_->fail(device.name() + " was left behind: it was not called in this round, and is in a " +
                 "later one now");
}

void Round::fail(const std::string& error) {
  std::vector<std::shared_ptr<Meeting>> waiting;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!error_) error_ = error;
    for (const auto& [_, backward] : backwards_) waiting.push_back(backward.first);
  }
  if (const auto group = group_.lock()) group->failed_at_once(number_);
  forward_->fail(error);
  for (const auto& backward : waiting) backward->fail(error);
}

std::shared_ptr<Meeting> Round::next_backward(const Device& device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::size_t call = backward_calls_[device]++;
  auto& [meeting, devices] = backwards_[call];
  if (!meeting) {
    meeting = std::make_shared<Meeting>(group_.lock(), number_, Direction::kBackward, processes_);
    if (error_) meeting->fail(*error_);
  }
  auto joined = meeting;
  if (++devices == num_devices_) backwards_.erase(call);
  return joined;
}

std::string failed_on(const Device& device, const std::string& reason) {
  return "failed on " + device.name() + ": " + reason;
}

}  // namespace gluon_syncbn

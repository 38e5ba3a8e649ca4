#include "sync/round.h"

#include <utility>
#include <vector>

#include "common/error.h"

namespace gluon_syncbn {

Round::Round(std::shared_ptr<Membership> members, std::uint64_t number,
             const std::shared_ptr<ProcessLink>& link)
    : members_(std::move(members)),
      number_(number),
      link_(link ? std::make_shared<RoundLink>(link) : nullptr),
      forward_(std::make_shared<Reduction>(members_, number, Direction::kForward, link_)) {}

void Round::agree(const Device& device, const Signature& signature) {
  std::string error;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!signature_) {
      signature_ = {device, signature};
      if (link_) link_->agree(signature);
    }
    const auto difference = signature_->second.difference(signature);
    if (!difference) return;
    error =
        "devices " + signature_->first.name() + " and " + device.name() + " differ: " + *difference;
  }
  fail(error);
  throw Error(forward_->name() + ": " + error);
}

void Round::fail(const Device& device, const std::string& reason) {
  fail("failed on " + device.name() + ": " + reason);
}

void Round::skip(const Device& device) {
  forward_->fail(device.name() + " was left behind: it was not called in this round, and is in a " +
                 "later one now");
}

void Round::fail(const std::string& error) {
  std::vector<std::shared_ptr<Reduction>> waiting;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!error_) error_ = error;
    for (const auto& [_, backward] : backwards_) waiting.push_back(backward.first);
  }
  members_->failed_at_once(number_);
  forward_->fail(error);
  for (const auto& backward : waiting) backward->fail(error);
}

std::shared_ptr<Reduction> Round::next_backward(const Device& device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::size_t call = backward_calls_[device]++;
  auto& [reduction, devices] = backwards_[call];
  if (!reduction) {
    reduction = std::make_shared<Reduction>(members_, number_, Direction::kBackward, link_);
    if (error_) reduction->fail(*error_);
  }
  auto joined = reduction;
  if (++devices == members_->num_devices()) backwards_.erase(call);
  return joined;
}

}  // namespace gluon_syncbn

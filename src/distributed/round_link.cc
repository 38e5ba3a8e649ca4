#include "distributed/round_link.h"

#include "common/error.h"

namespace gluon_syncbn {

RoundLink::~RoundLink() {
  if (slot_) link_->free(*slot_);
}

void RoundLink::agree(const Signature& signature) {
  const std::lock_guard<std::mutex> lock(mutex_);
  signature_ = signature;
}

void RoundLink::exchange(Direction direction, const Gather& gather, const Then& then) {
  const auto write = [self = shared_from_this(), gather, then](const auto& ready) {
    gather([self, then, ready](const PartialStatistics& own, const std::string& error) {
      // The answer will say so too, but the other processes may be long in coming.
      if (!error.empty()) then({}, error);
      ready(self->message(own, error));
    });
  };
  send(direction, write,
       [self = shared_from_this(), direction, then](const ProcessGroup::Gathered& gathered) {
         std::vector<PartialStatistics> processes;
         std::string error;
         try {
           processes = self->read(direction, gathered);
         } catch (const std::exception& caught) {
           error = caught.what();
         }
         then(processes, error);
       });
}

void RoundLink::cancel(Direction direction, const std::string& error) {
  send(
      direction,
      [self = shared_from_this(), error](const auto& ready) { ready(self->message({}, error)); },
      [](const ProcessGroup::Gathered&) {});
}

void RoundLink::send(Direction direction, ProcessLink::Write write, ProcessGroup::Then then) {
  const auto name = this->name(direction);
  if (!name) return then({{}, "its forward pass has not met the other processes"});
  link_->send(*name, {std::move(write), std::move(then)});
}

ProcessGroup::Words RoundLink::message(const PartialStatistics& statistics,
                                       const std::string& error) const {
  ProcessMessage message;
  message.statistics = statistics;
  message.text = error;
  message.round = number_;
  message.used_slots = link_->used_slots();
  const std::lock_guard<std::mutex> lock(mutex_);
  message.signature = signature_;
  return message.pack();
}

std::optional<std::string> RoundLink::name(Direction direction) const {
  if (direction == Direction::kForward) return link_->name() + ".forward";
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!slot_name_) return std::nullopt;
  return link_->name() + ".backward" + *slot_name_;
}

std::vector<PartialStatistics> RoundLink::read(Direction direction,
                                               const ProcessGroup::Gathered& gathered) {
  if (!gathered.error.empty()) {
    throw Error("the exchange with other processes has failed: " + gathered.error);
  }
  auto messages = ProcessMessage::unpack(gathered.words);
  if (messages.size() != static_cast<std::size_t>(link_->group()->size())) {
    throw Error(kUnreadableMessage);
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].text.empty()) {
      throw Error("failed on process " + std::to_string(i) + ": " + messages[i].text);
    }
  }
  const ProcessMessage& first = messages.front();
  for (std::size_t i = 1; i < messages.size(); ++i) {
    const std::string which = "processes 0 and " + std::to_string(i) + " differ: ";
    if (messages[i].round != first.round) {
      throw Error(which + "round " + std::to_string(first.round) + " and " +
                  std::to_string(messages[i].round) +
                  "; all processes should call the layer equally often in training");
    }
    if (const auto difference = first.signature.difference(messages[i].signature)) {
      throw Error(which + *difference);
    }
  }
  if (direction == Direction::kForward) take_slot(messages);
  std::vector<PartialStatistics> processes;
  for (auto& message : messages) processes.push_back(std::move(message.statistics));
  return processes;
}

void RoundLink::take_slot(const std::vector<ProcessMessage>& messages) {
  std::uint64_t used = 0;
  for (const ProcessMessage& message : messages) used |= message.used_slots;
  std::size_t slot = 0;
  while (slot < ProcessLink::kSlots && (used >> slot & 1) != 0) ++slot;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (slot < ProcessLink::kSlots) {
    link_->take(slot);
    slot_ = slot;
    slot_name_ = std::to_string(slot);
  } else {
    // More rounds await backward than there are slots: a name for this round alone.
    slot_name_ = "-of-" + std::to_string(number_);
  }
}

std::string RoundLink::describe(Direction direction) const {
  const ProcessGroup& group = *link_->group();
  return "All devices of this process came; it is " + group.describe() + ". " +
         group.missing(name(direction).value_or("")) +
         " Usual causes: a process has ended, or waits for something else; a process got no data "
         "this step; a branch that calls the layer was taken on some processes only; the "
         "networks of the processes differ, or were made in another order.";
}

}  // namespace gluon_syncbn

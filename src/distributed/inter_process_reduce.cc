#include "distributed/inter_process_reduce.h"

#include <utility>

#include "common/error.h"

namespace gluon_syncbn {

RoundLink::~RoundLink() {
  if (slot_) link_->free(*slot_);
}

void RoundLink::agree(const Signature& signature) {
  const std::lock_guard<std::mutex> lock(mutex_);
  signature_ = signature;
}

ProcessMessage RoundLink::message(const PartialStatistics& statistics,
                                  const std::string& error) const {
  ProcessMessage message;
  message.statistics = statistics;
  message.text = error;
  message.round = number_;
  message.used_slots = link_->used_slots();
  const std::lock_guard<std::mutex> lock(mutex_);
  message.signature = signature_;
  return message;
}

std::optional<std::string> RoundLink::name(Pass pass) const {
  if (pass == Pass::kForward) return link_->name() + ".forward";
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!slot_name_) return std::nullopt;
  return link_->name() + ".backward" + *slot_name_;
}

void RoundLink::send(Pass pass, ProcessLink::PendingMessage message) {
  const auto name = this->name(pass);
  if (!name) return message.then({{}, "its forward pass has not met the other processes"});
  link_->send(*name, std::move(message));
}

std::vector<ProcessMessage> RoundLink::read(const ProcessGroup::Gathered& gathered) const {
  if (!gathered.error.empty()) {
    throw Error("the exchange with other processes has failed: " + gathered.error);
  }
  auto messages = ProcessMessage::unpack(gathered.words);
  if (messages.size() != static_cast<std::size_t>(link_->group()->size())) {
    throw Error(
        "the message of another process cannot be read; all processes should run the same "
        "version of gluon_syncbn");
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
  return messages;
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

void InterProcessReduce::reduce(Bring bring, const Then& then) {
  const auto write = [round = round_, bring = std::move(bring), then](const auto& ready) {
    bring([round, then, ready](const PartialStatistics& own, const std::string& error) {
      // The answer will say so too, but the other processes may be long in coming.
      if (!error.empty()) then({}, error);
      ready(round->message(own, error).pack());
    });
  };
  const auto arrived = [round = round_, pass = pass_,
                        then](const ProcessGroup::Gathered& gathered) {
    std::vector<PartialStatistics> processes;
    std::string error;
    try {
      auto messages = round->read(gathered);
      if (pass == RoundLink::Pass::kForward) round->take_slot(messages);
      for (auto& message : messages) processes.push_back(std::move(message.statistics));
    } catch (const std::exception& caught) {
      error = caught.what();
    }
    then(processes, error);
  };
  round_->send(pass_, {write, arrived});
}

void InterProcessReduce::cancel(const std::string& error) {
  round_->send(pass_, {[round = round_, error](const auto& ready) {
                         ready(round->message({}, error).pack());
                       },
                       [](const ProcessGroup::Gathered&) {}});
}

std::string InterProcessReduce::describe() const {
  const ProcessGroup& group = *round_->link_->group();
  return "All devices of this process came; it is " + group.describe() + ". " +
         group.missing(round_->name(pass_).value_or("")) +
         " Usual causes: a process has ended, or waits for something else; a process got no data "
         "this step; a branch that calls the layer was taken on some processes only; the "
         "networks of the processes differ, or were made in another order.";
}

}  // namespace gluon_syncbn

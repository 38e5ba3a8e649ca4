#include "distributed/process_rounds.h"

#include <utility>

#include "common/enforce.h"
#include "common/error.h"
#include "common/per_process.h"

namespace gluon_syncbn {
namespace {

constexpr std::size_t kSlots = 64;  // bits of a word

struct OfAllLayers {
  std::mutex mutex;
  std::map<std::pair<int, std::string>, std::shared_ptr<ProcessRounds>> named;
};

}  // namespace

std::shared_ptr<ProcessRounds> ProcessRounds::named(const std::shared_ptr<ProcessGroup>& group,
                                                    const std::string& name) {
  auto& all = PerProcess<OfAllLayers>::instance();
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto& rounds = all.named[{group->id(), name}];
  if (!rounds || rounds->group_ != group) rounds = std::make_shared<ProcessRounds>(group, name);
  return rounds;
}

std::shared_ptr<ProcessRound> ProcessRounds::next_round() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::make_shared<ProcessRound>(shared_from_this(), rounds_++);
}

// Messages of one name go in the order of the calls to send(), however long it takes to write them.
// One of them is under way, and the others wait in `queued_`.

void ProcessRounds::send(const std::string& name, PendingMessage message) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [queue, is_first] = queued_.try_emplace(name);
    if (!is_first) {
      queue->second.push_back(std::move(message));
      return;
    }
  }
  start(name, message);
}

void ProcessRounds::start(const std::string& name, const PendingMessage& message) {
  const auto arrived = [self = shared_from_this(), name,
                        then = message.then](const ProcessGroup::Gathered& gathered) {
    // `then` may take a slot, and the next message must list it.
    then(gathered);
    self->start_next(name);
  };
  message.write([group = group_, name, arrived](ProcessGroup::Words words) {
    group->gather(name, std::move(words), arrived);
  });
}

void ProcessRounds::start_next(const std::string& name) {
  std::optional<PendingMessage> next;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto queue = queued_.find(name);
    GLUON_SYNCBN_ENFORCE(queue != queued_.end(), "no message under the name " + name);
    if (queue->second.empty()) {
      queued_.erase(queue);
      return;
    }
    next = std::move(queue->second.front());
    queue->second.pop_front();
  }
  start(name, *next);
}

std::uint64_t ProcessRounds::used_slots() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return used_slots_;
}

/// The first slot that no process uses; nothing if all are in use.
std::optional<std::size_t> ProcessRounds::take_slot(std::uint64_t used) {
  std::size_t slot = 0;
  while (slot < kSlots && (used >> slot & 1) != 0) ++slot;
  if (slot == kSlots) return std::nullopt;
  const std::lock_guard<std::mutex> lock(mutex_);
  used_slots_ |= std::uint64_t{1} << slot;
  return slot;
}

void ProcessRounds::free_slot(std::size_t slot) {
  const std::lock_guard<std::mutex> lock(mutex_);
  used_slots_ &= ~(std::uint64_t{1} << slot);
}

ProcessRound::~ProcessRound() {
  if (slot_) rounds_of_layer_->free_slot(*slot_);
}

void ProcessRound::agree(const Signature& signature) {
  const std::lock_guard<std::mutex> lock(mutex_);
  signature_ = signature;
}

void ProcessRound::exchange(Direction direction, const Merge& merge, const OnAnswer& then) {
  const auto write = [self = shared_from_this(), merge, then](const auto& ready) {
    merge([self, then, ready](const PartialStatistics& own, const std::string& error) {
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

void ProcessRound::cancel(Direction direction, const std::string& error) {
  send(
      direction,
      [self = shared_from_this(), error](const auto& ready) { ready(self->message({}, error)); },
      [](const ProcessGroup::Gathered&) {});
}

void ProcessRound::send(Direction direction, ProcessRounds::Write write,
                        ProcessGroup::OnGathered then) {
  const auto name = this->name(direction);
  if (!name) return then({{}, "its forward pass has not met the other processes"});
  rounds_of_layer_->send(*name, {std::move(write), std::move(then)});
}

ProcessGroup::Words ProcessRound::message(const PartialStatistics& statistics,
                                          const std::string& error) const {
  ProcessMessage message;
  message.statistics = statistics;
  message.text = error;
  message.round = number_;
  message.used_slots = rounds_of_layer_->used_slots();
  const std::lock_guard<std::mutex> lock(mutex_);
  message.signature = signature_;
  return message.pack();
}

/// Returns nothing if the forward pass of this backward pass has not met the other processes.
std::optional<std::string> ProcessRound::name(Direction direction) const {
  if (direction == Direction::kForward) return rounds_of_layer_->name_ + ".forward";
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!slot_name_) return std::nullopt;
  return rounds_of_layer_->name_ + ".backward" + *slot_name_;
}

/// Throws Error if a process has failed, or if the processes differ.
std::vector<PartialStatistics> ProcessRound::read(Direction direction,
                                                  const ProcessGroup::Gathered& gathered) {
  if (!gathered.error.empty()) {
    throw Error("the exchange with other processes has failed: " + gathered.error);
  }
  auto messages = ProcessMessage::unpack(gathered.words);
  require_equal(messages);
  if (direction == Direction::kForward) take_slot(messages);
  std::vector<PartialStatistics> processes;
  for (auto& message : messages) processes.push_back(std::move(message.statistics));
  return processes;
}

void ProcessRound::require_equal(const std::vector<ProcessMessage>& messages) const {
  if (messages.size() != static_cast<std::size_t>(rounds_of_layer_->group().size())) {
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
}

void ProcessRound::take_slot(const std::vector<ProcessMessage>& messages) {
  std::uint64_t used = 0;
  for (const ProcessMessage& message : messages) used |= message.used_slots;
  const std::lock_guard<std::mutex> lock(mutex_);
  slot_ = rounds_of_layer_->take_slot(used);
  // If more rounds await backward than there are slots, this round gets a name that no other uses.
  slot_name_ = slot_ ? std::to_string(*slot_) : "-of-" + std::to_string(number_);
}

std::string ProcessRound::describe(Direction direction) const {
  const ProcessGroup& group = rounds_of_layer_->group();
  return "All devices of this process came; it is " + group.describe() + ". " +
         group.missing(name(direction).value_or("")) +
         " Usual causes: a process has ended, or waits for something else; a process got no data "
         "this step; a branch that calls the layer was taken on some processes only; the "
         "networks of the processes differ, or were made in another order.";
}

}  // namespace gluon_syncbn

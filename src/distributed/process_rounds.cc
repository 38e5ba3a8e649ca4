#include "distributed/process_rounds.h"

#include "common/error.h"
#include "common/per_process.h"

namespace gluon_syncbn {
namespace {

constexpr std::size_t kSlots = 64;  // bits of a word

struct Known {
  std::mutex mutex;
  std::map<int, std::shared_ptr<ProcessGroup>> groups;
  std::map<std::pair<int, std::string>, std::shared_ptr<ProcessRounds>> layers;
};

using Lock = std::lock_guard<std::mutex>;

}  // namespace

void add_process_group(const std::shared_ptr<ProcessGroup>& group) {
  auto& known = PerProcess<Known>::instance();
  const Lock lock(known.mutex);
  known.groups[group->id()] = group;
  for (const auto& [id_and_name, layer] : known.layers) {
    if (id_and_name.first == group->id()) layer->start_again(group);
  }
}

std::shared_ptr<ProcessRounds> ProcessRounds::named(int group, const std::string& name) {
  auto& known = PerProcess<Known>::instance();
  const Lock lock(known.mutex);
  const auto found = known.groups.find(group);
  if (found == known.groups.end()) {
    throw Error("process set " + std::to_string(group) +
                " is not known in this process: call gluon_syncbn.init() after hvd.init()");
  }
  auto& layer = known.layers[{group, name}];
  if (!layer) layer = std::make_shared<ProcessRounds>(found->second, name);
  return layer;
}

std::shared_ptr<ProcessRound> ProcessRounds::next_round() {
  const Lock lock(mutex_);
  return std::make_shared<ProcessRound>(shared_from_this(), group_, rounds_++);
}

void ProcessRounds::start_again(const std::shared_ptr<ProcessGroup>& group) {
  const Lock lock(mutex_);
  group_ = group;
  rounds_ = 0;
  used_slots_ = 0;
}

namespace {

/// An exchange that is under way lives until its merge or its answer is there. An answer that never
/// comes must not keep it, and with it the layer.
std::shared_ptr<Exchange> unowned(const std::shared_ptr<Exchange>& exchange) {
  return {std::shared_ptr<void>(), exchange.get()};
}

}  // namespace

// Messages of one name go in the order of the calls to queue(), however long the merges take.

void ProcessRounds::queue(const std::string& name, const std::shared_ptr<Exchange>& exchange) {
  {
    const Lock lock(mutex_);
    auto& queue = queues_[name];
    queue.push_back(queue.empty() ? unowned(exchange) : exchange);
    if (queue.size() > 1) return;
  }
  exchange->merge();
}

bool ProcessRounds::is_under_way(const std::string& name,
                                 const std::shared_ptr<Exchange>& exchange) const {
  const Lock lock(mutex_);
  const auto queue = queues_.find(name);
  return queue != queues_.end() && queue->second.front() == exchange;
}

void ProcessRounds::start_next(const std::string& name) {
  std::shared_ptr<Exchange> next;
  {
    const Lock lock(mutex_);
    const auto queue = queues_.find(name);
    queue->second.pop_front();
    if (queue->second.empty()) {
      queues_.erase(queue);
      return;
    }
    next = queue->second.front();
    queue->second.front() = unowned(next);
  }
  next->merge();
}

ProcessRound::~ProcessRound() {
  const Lock lock(layer_->mutex_);
  if (slot_ && is_current()) layer_->used_slots_ &= ~(std::uint64_t{1} << *slot_);
}

void ProcessRound::agree(const Signature& signature) {
  const Lock lock(layer_->mutex_);
  signature_ = signature;
}

void ProcessRound::queue(Direction direction, const std::shared_ptr<Exchange>& exchange) {
  std::string name;
  {
    const Lock lock(layer_->mutex_);
    name = this->name(direction);
    if (direction == Direction::kBackward && (slot_name_.empty() || !is_current())) name.clear();
  }
  if (name.empty()) {
    return exchange->answered({}, "its forward pass has not met the other processes");
  }
  layer_->queue(name, exchange);
}

void ProcessRound::send(Direction direction, const std::shared_ptr<Exchange>& exchange,
                        const PartialStatistics& statistics, const std::string& error) {
  ProcessMessage message;
  message.statistics = statistics;
  message.text = error;
  message.round = number_;
  std::string name;
  {
    const Lock lock(layer_->mutex_);
    message.used_slots = layer_->used_slots_;
    message.signature = signature_;
    name = this->name(direction);
  }
  group_->gather(name, message.pack(),
                 [self = shared_from_this(), direction, name, exchange](const auto& gathered) {
                   self->answered(direction, name, exchange, gathered);
                 });
}

void ProcessRound::answered(Direction direction, const std::string& name,
                            const std::shared_ptr<Exchange>& exchange,
                            const ProcessGroup::Gathered& gathered) {
  const bool is_under_way = layer_->is_under_way(name, exchange);
  PartialStatistics merged;
  std::string error;
  try {
    GLUON_SYNCBN_ENFORCE(is_under_way, "no message under the name " + name);
    merged = read(direction, gathered);
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  exchange->answered(merged, error);
  // After read(), which may take a slot: the next message must list it.
  if (is_under_way) layer_->start_next(name);
}

std::string ProcessRound::name(Direction direction) const {
  return layer_->name_ + (direction == Direction::kForward ? ".forward" : ".backward" + slot_name_);
}

/// Throws Error if a process has failed, or if the processes differ.
PartialStatistics ProcessRound::read(Direction direction, const ProcessGroup::Gathered& gathered) {
  if (!gathered.error.empty()) {
    throw Error("the exchange with other processes has failed: " + gathered.error);
  }
  auto messages = ProcessMessage::unpack(gathered.words);
  require_equal(messages);
  if (direction == Direction::kForward) take_slot(messages);
  std::vector<PartialStatistics> processes;
  for (auto& message : messages) processes.push_back(std::move(message.statistics));
  return merge(direction, processes);
}

void ProcessRound::require_equal(const std::vector<ProcessMessage>& messages) const {
  if (messages.size() != static_cast<std::size_t>(group_->size())) {
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
    if (messages[i].statistics.channels != first.statistics.channels) {
      throw Error(kUnreadableMessage);
    }
  }
}

/// Takes the first slot that no process uses.
void ProcessRound::take_slot(const std::vector<ProcessMessage>& messages) {
  std::uint64_t used = 0;
  for (const ProcessMessage& message : messages) used |= message.used_slots;
  std::size_t slot = 0;
  while (slot < kSlots && (used >> slot & 1) != 0) ++slot;
  const Lock lock(layer_->mutex_);
  if (slot == kSlots) {
    // More rounds await backward than there are slots. This round gets a name that no other uses.
    slot_name_ = "-of-" + std::to_string(number_);
  } else if (is_current()) {
    slot_ = slot;
    slot_name_ = std::to_string(slot);
    layer_->used_slots_ |= std::uint64_t{1} << slot;
  }
}

std::string ProcessRound::describe(Direction direction) const {
  const Lock lock(layer_->mutex_);
  return "All devices of this process came; it is " + group_->describe(name(direction)) +
         "\nUsual causes: a process has ended, or waits for something else; a process got no data "
         "this step; a branch that calls the layer was taken on some processes only; the "
         "networks of the processes differ, or were made in another order.";
}

}  // namespace gluon_syncbn

#include "distributed/process_rounds.h"

#include <atomic>
#include <utility>

#include "common/error.h"
#include "common/list_text.h"
#include "common/per_process.h"

namespace gluon_syncbn {
namespace {

constexpr std::size_t kSlots = 64;  // bits of a word
constexpr const char* kStartedAgain = "gluon_syncbn.init() has begun anew with other processes";

struct Known {
  std::mutex mutex;
  std::map<int, std::shared_ptr<ProcessGroup>> groups;
  std::map<std::pair<int, std::string>, std::shared_ptr<ProcessRounds>> layers;
};

using Lock = std::lock_guard<std::mutex>;

/// Throws Error if a process has failed, or if the processes differ.
void require_equal(const std::vector<ProcessMessage>& messages, int processes) {
  if (messages.size() != static_cast<std::size_t>(processes)) throw Error(kUnreadableMessage);
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

}  // namespace

void add_process_group(const std::shared_ptr<ProcessGroup>& group) {
  auto& known = PerProcess<Known>::instance();
  std::unique_lock<std::mutex> lock(known.mutex);
  known.groups[group->id()] = group;
  const auto layers = known.layers;
  lock.unlock();  // messages get errors, and their receivers may ask for a layer
  for (const auto& [id_and_name, layer] : layers) {
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

std::shared_ptr<ProcessRounds::Seat> ProcessRounds::next_round() {
  const Lock lock(mutex_);
  return std::shared_ptr<Seat>(new Seat{shared_from_this(), group_, rounds_++});
}

ProcessRounds::Seat::~Seat() {
  const Lock lock(layer->mutex_);
  if (slot && layer->group_ == group) layer->used_slots_ &= ~(std::uint64_t{1} << *slot);
}

void ProcessRounds::start_again(const std::shared_ptr<ProcessGroup>& group) {
  std::map<std::string, std::deque<Message>> lines;
  {
    const Lock lock(mutex_);
    group_ = group;
    rounds_ = 0;
    used_slots_ = 0;
    lines = std::exchange(lines_, {});
  }
  for (const auto& [_, line] : lines) {
    for (const Message& message : line) message.on_answer({}, kStartedAgain);
  }
}

std::vector<std::string> ProcessRounds::under_way() const {
  const Lock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, _] : lines_) names.push_back(name);
  return names;
}

std::string unanswered_messages() {
  auto& known = PerProcess<Known>::instance();
  const Lock lock(known.mutex);
  std::string list;
  for (const auto& [_, layer] : known.layers) {
    for (const std::string& name : layer->under_way()) append_item(&list, name);
  }
  if (list.empty()) return "";
  return "warning: gluon_syncbn.drop_step() leaves messages that other processes have not answered "
         "(" +
         list +
         "). They meet the next messages of these layers, which may be of another "
         "step. To begin anew, call hvd.shutdown(), hvd.init() and gluon_syncbn.init() in all "
         "processes";
}

std::function<void()> ProcessRounds::queue(const std::shared_ptr<Seat>& seat, Direction direction,
                                           const OnTurn& on_turn, const OnAnswer& on_answer) {
  const Lock lock(mutex_);
  std::string error;
  if (seat->group != group_) {
    error = kStartedAgain;
  } else if (direction == Direction::kBackward && seat->slot_name.empty()) {
    error = "its forward pass has not met the other processes";
  }
  if (!error.empty()) return [on_answer, error] { on_answer({}, error); };
  auto turn = [self = shared_from_this(), seat, direction, on_turn, on_answer] {
    on_turn([=](ProcessMessage message) {
      self->send(seat, direction, std::move(message), on_answer);
    });
  };
  const auto [line, is_free] = lines_.try_emplace(name(*seat, direction));
  if (is_free) return turn;
  line->second.push_back({std::move(turn), on_answer});
  return [] {};
}

void ProcessRounds::send(const std::shared_ptr<Seat>& seat, Direction direction,
                         ProcessMessage message, const OnAnswer& on_answer) {
  std::string name;
  {
    const Lock lock(mutex_);
    message.round = seat->number;
    message.used_slots = used_slots_;
    name = this->name(*seat, direction);
  }
  const auto is_answered = std::make_shared<std::atomic<bool>>(false);
  const auto self = shared_from_this();
  seat->group->gather(name, message.pack(), [=](const ProcessGroup::Gathered& gathered) {
    if (is_answered->exchange(true)) return;
    PartialStatistics merged;
    std::string error;
    try {
      merged = self->read(seat.get(), direction, gathered);
    } catch (const std::exception& caught) {
      error = caught.what();
    }
    on_answer(merged, error);
    // After read(), which may take a slot: the next message must list it.
    self->start_next(*seat, name);
  });
}

void ProcessRounds::start_next(const Seat& seat, const std::string& name) {
  std::function<void()> take_turn;
  {
    const Lock lock(mutex_);
    if (seat.group != group_) return;  // start_again() has cleared its line
    const auto line = lines_.find(name);
    if (line->second.empty()) {
      lines_.erase(line);
      return;
    }
    take_turn = std::move(line->second.front().take_turn);
    line->second.pop_front();
  }
  take_turn();
}

std::string ProcessRounds::name(const Seat& seat, Direction direction) const {
  return name_ + (direction == Direction::kForward ? ".forward" : ".backward" + seat.slot_name);
}

PartialStatistics ProcessRounds::read(Seat* seat, Direction direction,
                                      const ProcessGroup::Gathered& gathered) {
  if (!gathered.error.empty()) {
    throw Error("the exchange with other processes has failed: " + gathered.error);
  }
  auto messages = ProcessMessage::unpack(gathered.words);
  require_equal(messages, seat->group->size());
  if (direction == Direction::kForward) take_slot(seat, messages);
  std::vector<PartialStatistics> processes;
  for (auto& message : messages) processes.push_back(std::move(message.statistics));
  return merge(direction, processes);
}

/// Takes the first slot that no process uses.
void ProcessRounds::take_slot(Seat* seat, const std::vector<ProcessMessage>& messages) {
  std::uint64_t used = 0;
  for (const ProcessMessage& message : messages) used |= message.used_slots;
  std::size_t slot = 0;
  while (slot < kSlots && (used >> slot & 1) != 0) ++slot;
  const Lock lock(mutex_);
  if (slot == kSlots) {
    // More rounds await backward than there are slots. This round gets a name that no other uses.
    seat->slot_name = "-of-" + std::to_string(seat->number);
  } else if (group_ == seat->group) {
    seat->slot = slot;
    seat->slot_name = std::to_string(slot);
    used_slots_ |= std::uint64_t{1} << slot;
  }
}

std::string ProcessRounds::describe(const Seat& seat, Direction direction) const {
  const Lock lock(mutex_);
  return "All devices of this process came; it is " + seat.group->describe(name(seat, direction)) +
         "\nUsual causes: a process has ended, or waits for something else; a process got no data "
         "this step; a branch that calls the layer was taken on some processes only; the "
         "networks of the processes differ, or were made in another order.";
}

}  // namespace gluon_syncbn

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "distributed/message.h"
#include "distributed/process_group.h"

namespace gluon_syncbn {

/// Lets operators name `group` by its id. Layers that use an earlier group with this id go on with
/// `group`, and count their rounds from 0.
void add_process_group(const std::shared_ptr<ProcessGroup>& group);

/// Says in a whole sentence which messages other processes have not answered; "" if there are none.
std::string unanswered_messages();

/// All rounds of a layer that exchange with the same layer of other processes: their number, their
/// slots, and the messages that wait for their turn.
///
/// Messages meet by name. Names have to be the same on all processes. Names should be few, and
/// the same in every step, because the group keeps data for each name.
///
/// The forward passes of all rounds share one name, because rounds of one layer follow each other.
/// Several backward passes may overlap, so each round has a slot: a number in the name of its
/// backward messages. In forward, every process sends its used slots. All processes take the first
/// slot that no process uses.
class ProcessRounds : public std::enable_shared_from_this<ProcessRounds> {
 public:
  /// One round of the layer as other processes see it. Its slot is free when it goes.
  struct Seat {
    ~Seat();

    const std::shared_ptr<ProcessRounds> layer;  // its mutex guards the members below
    const std::shared_ptr<ProcessGroup> group;
    const std::uint64_t number;
    std::optional<std::size_t> slot = {};
    std::string slot_name = {};  // empty before the forward pass has met the other processes
  };

  ProcessRounds(std::shared_ptr<ProcessGroup> group, std::string name)
      : id_(group->id()), name_(std::move(name)), group_(std::move(group)) {}

  /// Returns the object that all callers with this name share. It stays until the process ends,
  /// because it counts the rounds. Processes may destroy their layers at different times. Throws
  /// Error if there is no group with this id.
  static std::shared_ptr<ProcessRounds> named(int group, const std::string& name);

  /// The id of the group.
  int group() const { return id_; }

  std::shared_ptr<Seat> next_round();
  /// Goes on with other processes. Messages that wait for their turn get an error.
  void start_again(const std::shared_ptr<ProcessGroup>& group);

  /// Gets the signature, and the partial statistics of this process or the reason why it has none.
  using Send = std::function<void(ProcessMessage)>;
  /// The message of this process has its turn. Calls `send` once, now or later.
  using OnTurn = std::function<void(const Send& send)>;
  /// Gets the merged partial statistics of all processes, or an error. Called once, from any
  /// thread.
  using OnAnswer = std::function<void(const PartialStatistics& merged, const std::string& error)>;

  /// Gives a message its place after those that were queued before under its name, however long
  /// these take. The caller calls the result, which calls `on_turn` if it is this message's turn.
  /// What they call does not throw.
  std::function<void()> queue(const std::shared_ptr<Seat>& seat, Direction direction,
                              const OnTurn& on_turn, const OnAnswer& on_answer);

  /// Says in whole sentences how to find the missing processes. Error texts use it.
  std::string describe(const Seat& seat, Direction direction) const;
  /// The names of the messages that are under way.
  std::vector<std::string> under_way() const;

 private:
  void send(const std::shared_ptr<Seat>& seat, Direction direction, ProcessMessage message,
            const OnAnswer& on_answer);
  void start_next(const Seat& seat, const std::string& name);
  std::string name(const Seat& seat, Direction direction) const;
  PartialStatistics read(Seat* seat, Direction direction, const ProcessGroup::Gathered& gathered);
  void take_slot(Seat* seat, const std::vector<ProcessMessage>& messages);

  const int id_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::shared_ptr<ProcessGroup> group_;
  std::uint64_t rounds_ = 0;
  std::uint64_t used_slots_ = 0;
  struct Message {
    std::function<void()> take_turn;
    OnAnswer on_answer;
  };
  // The names under which a message is under way, and the messages that wait.
  std::map<std::string, std::deque<Message>> lines_;
};

}  // namespace gluon_syncbn

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/signature.h"
#include "distributed/message.h"
#include "distributed/process_group.h"

namespace gluon_syncbn {

class ProcessRound;

/// Lets operators name `group` by its id. Layers that use an earlier group with this id go on with
/// `group`, and count their rounds from 0.
void add_process_group(const std::shared_ptr<ProcessGroup>& group);

/// What a ProcessRound calls in an exchange: the meeting of this process. Does not throw.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// The message of this process has its turn. Calls ProcessRound::send() once, now or later.
  virtual void merge() = 0;
  /// Called once, from any thread, with the merged partial statistics of all processes, or with an
  /// error.
  virtual void answered(const PartialStatistics& merged, const std::string& error) = 0;
};

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
  ProcessRounds(std::shared_ptr<ProcessGroup> group, std::string name)
      : id_(group->id()), name_(std::move(name)), group_(std::move(group)) {}

  /// Returns the object that all callers with this name share. It stays until the process ends,
  /// because it counts the rounds. Processes may destroy their layers at different times. Throws
  /// Error if there is no group with this id.
  static std::shared_ptr<ProcessRounds> named(int group, const std::string& name);

  /// The id of the group.
  int group() const { return id_; }

  std::shared_ptr<ProcessRound> next_round();
  /// Goes on with other processes.
  void start_again(const std::shared_ptr<ProcessGroup>& group);

 private:
  friend ProcessRound;

  void queue(const std::string& name, const std::shared_ptr<Exchange>& exchange);
  bool is_under_way(const std::string& name, const std::shared_ptr<Exchange>& exchange) const;
  void start_next(const std::string& name);

  const int id_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::shared_ptr<ProcessGroup> group_;
  std::uint64_t rounds_ = 0;
  std::uint64_t used_slots_ = 0;
  // By the name of their messages, in the order of queue(). The first of each is under way, and not
  // owned.
  std::map<std::string, std::deque<std::shared_ptr<Exchange>>> queues_;
};

/// One round of a layer as other processes see it: its number among them, its signature, its slot.
class ProcessRound : public std::enable_shared_from_this<ProcessRound> {
 public:
  ProcessRound(std::shared_ptr<ProcessRounds> layer, std::shared_ptr<ProcessGroup> group,
               std::uint64_t number)
      : layer_(std::move(layer)), group_(std::move(group)), number_(number) {}
  ~ProcessRound();
  ProcessRound(const ProcessRound&) = delete;
  ProcessRound& operator=(const ProcessRound&) = delete;

  /// Stores the signature of this process, which its messages contain. Each process compares all
  /// signatures.
  void agree(const Signature& signature);

  /// Calls exchange->merge() when the messages before have been answered.
  void queue(Direction direction, const std::shared_ptr<Exchange>& exchange);
  /// Sends the partial statistics of this process, or the reason why it has none, and calls
  /// exchange->answered() with the answer. Does not throw.
  void send(Direction direction, const std::shared_ptr<Exchange>& exchange,
            const PartialStatistics& statistics, const std::string& error);
  /// Says in whole sentences how to find the missing processes. Error texts use it.
  std::string describe(Direction direction) const;

 private:
  void answered(Direction direction, const std::string& name,
                const std::shared_ptr<Exchange>& exchange, const ProcessGroup::Gathered& gathered);
  bool is_current() const { return layer_->group_ == group_; }
  std::string name(Direction direction) const;
  PartialStatistics read(Direction direction, const ProcessGroup::Gathered& gathered);
  void require_equal(const std::vector<ProcessMessage>& messages) const;
  void take_slot(const std::vector<ProcessMessage>& messages);

  const std::shared_ptr<ProcessRounds> layer_;  // its mutex guards the members below
  const std::shared_ptr<ProcessGroup> group_;
  const std::uint64_t number_;
  Signature signature_;
  std::optional<std::size_t> slot_;
  std::string slot_name_;  // empty before the forward pass has met the other processes
};

}  // namespace gluon_syncbn

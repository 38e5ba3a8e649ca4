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
#include <vector>

#include "common/direction.h"
#include "common/signature.h"
#include "distributed/message.h"
#include "distributed/process_group.h"

namespace gluon_syncbn {

class ProcessRound;

/// Counts the rounds of a layer, and exchanges its messages with the same layer of other processes.
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
      : group_(std::move(group)), name_(std::move(name)) {}

  /// Returns the object that all callers with this name share. It stays until the process ends,
  /// because it counts the rounds. Processes may destroy their layers at different times.
  static std::shared_ptr<ProcessRounds> named(const std::shared_ptr<ProcessGroup>& group,
                                              const std::string& name);

  const ProcessGroup& group() const { return *group_; }

  std::shared_ptr<ProcessRound> next_round();

 private:
  friend ProcessRound;
  /// Writes a message when its turn comes: gives the words to its argument once, now or later.
  using Write = std::function<void(std::function<void(ProcessGroup::Words)>)>;
  struct PendingMessage {
    Write write;
    ProcessGroup::OnGathered then;
  };

  void send(const std::string& name, PendingMessage message);
  void start(const std::string& name, const PendingMessage& message);
  void start_next(const std::string& name);

  std::uint64_t used_slots() const;
  std::optional<std::size_t> take_slot(std::uint64_t used);
  void free_slot(std::size_t slot);

  const std::shared_ptr<ProcessGroup> group_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::uint64_t rounds_ = 0;
  std::uint64_t used_slots_ = 0;
  std::map<std::string, std::deque<PendingMessage>> queued_;  // after the current message
};

/// One round of a layer: sends the partial statistics of this process, and receives those of all.
class ProcessRound : public std::enable_shared_from_this<ProcessRound> {
 public:
  ProcessRound(std::shared_ptr<ProcessRounds> rounds, std::uint64_t number)
      : rounds_of_layer_(std::move(rounds)), number_(number) {}
  ~ProcessRound();
  ProcessRound(const ProcessRound&) = delete;
  ProcessRound& operator=(const ProcessRound&) = delete;

  /// Stores the signature of this process, which its messages contain. Each process compares all
  /// signatures.
  void agree(const Signature& signature);

  /// Calls its argument once, now or later, with the merged partial statistics of this process or
  /// with an error.
  using Merge =
      std::function<void(std::function<void(const PartialStatistics&, const std::string& error)>)>;
  /// Gets the partial statistics of all processes in their order, or an error.
  using OnAnswer =
      std::function<void(const std::vector<PartialStatistics>&, const std::string& error)>;

  /// Calls `then` with the answer, now or later, from any thread. If `merge` fails, calls `then`
  /// twice: at once with the error, and later with the answer, an error too. Does not throw.
  void exchange(Direction direction, const Merge& merge, const OnAnswer& then);
  /// Sends the other processes the reason why this process has no partial statistics.
  void cancel(Direction direction, const std::string& error);
  /// Describes in whole sentences which processes are missing. Error texts use it.
  std::string describe(Direction direction) const;

 private:
  ProcessGroup::Words message(const PartialStatistics& statistics, const std::string& error) const;
  std::optional<std::string> name(Direction direction) const;
  void send(Direction direction, ProcessRounds::Write write, ProcessGroup::OnGathered then);
  std::vector<PartialStatistics> read(Direction direction, const ProcessGroup::Gathered& gathered);
  void require_equal(const std::vector<ProcessMessage>& messages) const;
  void take_slot(const std::vector<ProcessMessage>& messages);

  const std::shared_ptr<ProcessRounds> rounds_of_layer_;
  const std::uint64_t number_;
  mutable std::mutex mutex_;
  Signature signature_;
  std::optional<std::string> slot_name_;
  std::optional<std::size_t> slot_;
};

}  // namespace gluon_syncbn

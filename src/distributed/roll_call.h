#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/watchdog.h"
#include "distributed/process_group.h"

namespace gluon_syncbn {

/// A group whose processes know what each of them waits for, so that all of them can name the
/// missing processes.
///
/// If no exchange has ended for a while, every process calls the roll: it sends the names of the
/// exchanges that it waits in. A process that never calls a layer takes part too, because the
/// watchdog's thread calls. An exchange or a roll call ends on all processes at the same time. Each
/// process counts the time from there, so they call at the same time without an agreement.
class RollCall : public ProcessGroup,
                 public Waiting,
                 public std::enable_shared_from_this<RollCall> {
 public:
  explicit RollCall(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}
  ~RollCall() override { Watchdog::instance().unwatch(this); }

  /// Begins to call the roll. All processes of the group should begin at about the same time.
  /// Throws Error if the watchdog cannot start.
  void begin();
  /// Ends the roll calls, because another group takes the place of this group.
  void end();

  void gather(const std::string& name, Words message, OnGathered then) override;
  int id() const override { return group_->id(); }
  int size() const override { return group_->size(); }
  int number() const override { return group_->number(); }
  std::string describe() const override { return group_->describe(); }
  std::string missing(const std::string& name) const override;

  double remind_after() const override { return kCallRollAfter; }
  void remind(Seconds waited, Seconds limit) override;  ///< calls the roll
  void give_up(Seconds waited) override;
  void fail(const std::string& error) override;

 private:
  using Clock = std::chrono::steady_clock;

  std::optional<std::string> watch();
  void call();
  void answered(const Gathered& gathered);

  const std::shared_ptr<ProcessGroup> group_;
  mutable std::mutex mutex_;
  std::multiset<std::string> under_way_;
  bool ended_ = false;
  bool calling_ = false;
  Clock::time_point called_;
  std::vector<std::set<std::string>> awaited_;  // by each process, as of the last roll call
};

}  // namespace gluon_syncbn

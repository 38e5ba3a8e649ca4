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

/// A share of the timeout. The reminder names the processes that the roll call has found missing.
inline constexpr double kCallRollAfter = 0.05;
static_assert(kCallRollAfter < kRemindAfter);

/// Wraps a process group. Every process learns in which exchanges the others wait, so error texts
/// can name the missing processes.
///
/// If no exchange has ended for a while, every process calls the roll: it sends the names of its
/// unfinished exchanges. A process that calls no layer takes part too, because the watchdog's
/// thread calls the roll. An exchange or a roll call ends on all processes at the same time. Each
/// process measures the time since that end. So all processes call the roll at the same time,
/// without a message.
class RollCall : public ProcessGroup,
                 public Waiting,
                 public std::enable_shared_from_this<RollCall> {
 public:
  explicit RollCall(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}
  ~RollCall() override { Watchdog::instance().unwatch(this); }

  /// Begins to call the roll. All processes of the group should begin at about the same time.
  /// Throws Error if the watchdog cannot start.
  void begin();
  /// Ends the roll calls. The registry calls end() when another group replaces this group.
  void end();

  void gather(const std::string& name, Words message, OnGathered then) override;
  int id() const override { return group_->id(); }
  int size() const override { return group_->size(); }
  int number() const override { return group_->number(); }
  std::string describe() const override { return group_->describe(); }
  std::string missing(const std::string& name) const override;

  double remind_after() const override { return kCallRollAfter; }
  void remind(Seconds waited, Seconds limit) override;  ///< calls the roll
  void give_up(Seconds waited) override;         ///< calls the roll; if unanswered, ends the watch
  void fail(const std::string& error) override;  ///< ends the roll calls

 private:
  using Clock = std::chrono::steady_clock;

  /// Restarts the watchdog's clock. Returns the reason if the watchdog cannot watch.
  std::optional<std::string> watch();
  void call();
  void answered(const Gathered& gathered);

  const std::shared_ptr<ProcessGroup> group_;
  mutable std::mutex mutex_;
  std::multiset<std::string> under_way_;  // exchanges of this process that have not ended
  bool ended_ = false;
  bool calling_ = false;
  Clock::time_point called_;
  std::vector<std::set<std::string>> awaited_;  // exchanges of each process at the last roll call
};

}  // namespace gluon_syncbn

#ifndef GLUON_SYNCBN_DISTRIBUTED_STALL_INSPECTOR_H_
#define GLUON_SYNCBN_DISTRIBUTED_STALL_INSPECTOR_H_

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

/// A group whose processes know of each other what each waits for, so that the missing ones can be
/// named on all of them.
///
/// Whenever no exchange has ended for a while, every process tells the others the names under which
/// it waits: also the one that never calls, because it is the watchdog's thread that does so. An
/// exchange ends on all processes at the same time, and so does a roll call; the next one is
/// counted from there, so that the processes call at the same time without having agreed to.
class StallInspector : public ProcessGroup,
                       public Waiting,
                       public std::enable_shared_from_this<StallInspector> {
 public:
  explicit StallInspector(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}
  ~StallInspector() override { Watchdog::instance().unwatch(this); }

  /// From now on, calls the roll: all processes of the group should begin at about the same time.
  /// Throws Error if nothing can wake it for that.
  void begin();
  /// Another group takes this one's place.
  void end();

  void gather(const std::string& name, Words message, Then then) override;
  int id() const override { return group_->id(); }
  int size() const override { return group_->size(); }
  int number() const override { return group_->number(); }
  std::string describe() const override { return group_->describe(); }
  std::string missing(const std::string& name) const override;

  double warn_after() const override { return 0.05; }
  void warn(Seconds waited, Seconds limit) override;
  void give_up(Seconds waited) override;
  void fail(const std::string& error) override;

 private:
  using Clock = std::chrono::steady_clock;

  std::optional<std::string> watch();
  void call();
  void came(const Gathered& gathered);

  const std::shared_ptr<ProcessGroup> group_;
  mutable std::mutex mutex_;
  std::multiset<std::string> under_way_;
  bool ended_ = false;
  bool calling_ = false;
  Clock::time_point called_;
  std::vector<std::set<std::string>> awaited_;  // by each process, as of the last roll call
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_DISTRIBUTED_STALL_INSPECTOR_H_

#ifndef GLUON_SYNCBN_MXNET_UPDATE_ORDER_H_
#define GLUON_SYNCBN_MXNET_UPDATE_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "norm/statistics.h"

namespace gluon_syncbn {

/// Brings the updates of running statistics that several uses of one layer share into program
/// order on one device. Exponential averages depend on the order, and a host that runs independent
/// uses in any order would give every device an average of its own.
class UpdateOrder {
 public:
  using StatisticsPtr = std::shared_ptr<const Statistics>;

  /// Whoever holds this is the only one to take updates, and to move the averages by them.
  std::unique_lock<std::mutex> turn() { return std::unique_lock<std::mutex>(turn_); }

  /// The place of the next use in program order; nothing once an update has come in.
  std::optional<std::size_t> add_use();

  /// Takes the update of the next forward of `use`, null where that failed, and returns all that
  /// are due, in order. None is due before its predecessor has come.
  std::vector<StatisticsPtr> update(std::size_t use, StatisticsPtr statistics);

 private:
  using Position = std::pair<std::uint64_t, std::size_t>;  // pass, use

  bool is_due(const Position& position) const;

  std::mutex turn_;
  std::mutex mutex_;
  bool started_ = false;
  std::vector<std::uint64_t> passes_;  // by use
  Position next_{0, 0};
  std::map<Position, StatisticsPtr> early_;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_MXNET_UPDATE_ORDER_H_

#ifndef GLUON_SYNCBN_OPERATOR_UPDATE_ORDER_H_
#define GLUON_SYNCBN_OPERATOR_UPDATE_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "common/device.h"
#include "norm/backend.h"

namespace gluon_syncbn::op {

class UpdateOrder;

/// The uses of one layer in one graph on one device, in the order of the graph, in which MXNet
/// creates their operators.
class GraphUses {
 public:
  explicit GraphUses(std::size_t trace) : trace_(trace) {}

  /// Adds a use with the number that the block gave it while it was traced, and returns its place.
  /// Nothing if it belongs to another graph, be it a copy of this one.
  std::optional<std::size_t> add(std::size_t trace, std::size_t use);

  /// The order of updates of the running mean at this address, which is kept for the next use.
  std::shared_ptr<UpdateOrder> order(const Device& device, const void* running_mean);

  std::size_t size() const;

  /// A use has run, or failed, in `pass`.
  void came(std::uint64_t pass);
  /// Whether no use comes any more in `pass`.
  bool are_over(std::uint64_t pass) const;

 private:
  const std::size_t trace_;
  mutable std::mutex mutex_;
  const void* running_mean_ = nullptr;
  std::shared_ptr<UpdateOrder> order_;
  std::set<std::size_t> uses_;
  std::map<std::uint64_t, std::size_t> came_;  // by pass, of the last few
};

/// The updates of the running statistics that lie in one array of one device.
///
/// Exponential averages depend on the order of their updates, and a static graph runs independent
/// uses of a layer in any order. So the order is decided where a pass meets, for all devices at
/// once: that of the graph, and between graphs that in which their passes meet. No update waits for
/// another one. Each is applied when its statistics are there; if later ones have been applied
/// before, all are applied again to what the averages were before.
class UpdateOrder {
 public:
  /// That of the running mean at this address, for as long as somebody holds it.
  static std::shared_ptr<UpdateOrder> of(const Device& device, const void* running_mean);

  struct Place {
    std::weak_ptr<GraphUses> uses;
    std::uint64_t pass = 0;
    std::size_t use = 0;  ///< its place in `uses`
  };
  class Entry;

  /// Decides the place of an update that ends with apply() or cancel().
  std::shared_ptr<Entry> reserve(Place place);

  /// Adds to `update` what the averages are to be moved by; `statistics` may be null: by nothing.
  /// Holds off all others until `update` is destroyed.
  void apply(const std::shared_ptr<Entry>& entry, StatisticsPtr statistics, Update* update);
  void cancel(const std::shared_ptr<Entry>& entry);

 private:
  bool is_settled() const;
  void forget_if_settled();
  void forget_applied();

  std::mutex turn_;
  std::mutex mutex_;
  std::list<std::shared_ptr<Entry>> entries_;
  std::shared_ptr<SavedStatistics> before_;  // null where no entry has been applied
};

}  // namespace gluon_syncbn::op

#endif  // GLUON_SYNCBN_OPERATOR_UPDATE_ORDER_H_

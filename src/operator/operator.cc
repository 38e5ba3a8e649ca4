#include "operator/operator.h"

#include <cstdint>
#include <utility>

namespace gluon_syncbn::op {

Operator::Operator(Attributes attributes, Device device, const Backend& backend,
                   std::shared_ptr<SyncGroup> group, std::shared_ptr<NodeCalls> node_calls)
    : attributes_(std::move(attributes)),
      positions_(attributes_),
      device_(std::move(device)),
      backend_(backend),
      group_(std::move(group)),
      node_calls_(std::move(node_calls)) {
  if (group_) ticket_ = group_->announce(device_);
}

bool Operator::begin_training(const void* running_mean, const std::vector<std::int64_t>& data) {
  std::size_t arrays = reinterpret_cast<std::uintptr_t>(running_mean);
  for (const std::int64_t size : data) arrays = 31 * arrays + static_cast<std::size_t>(size);
  const auto original = original_.lock();
  std::size_t expected = arrays;
  if (!original || !original->may_be_repeated_.compare_exchange_strong(expected, 0)) {
    may_be_repeated_ = arrays;
    return false;
  }
  // MXNet calls backward for this operator instead.
  node_calls_->end(device_, original);
  return true;
}

}  // namespace gluon_syncbn::op

#include "operator/operator.h"

#include <utility>

namespace gluon_syncbn::op {

Operator::Operator(Attributes attributes, Device device, std::shared_ptr<Backend> backend,
                   std::shared_ptr<SyncGroup> group, std::shared_ptr<PendingForwards> pending)
    : attributes_(std::move(attributes)),
      positions_(attributes_),
      device_(std::move(device)),
      backend_(std::move(backend)),
      group_(std::move(group)),
      pending_(std::move(pending)) {
  if (group_) ticket_ = group_->announce(device_);
}

bool Operator::begin_training() {
  const auto original = original_.lock();
  if (!original || !original->may_be_repeated_.exchange(false)) {
    may_be_repeated_ = true;
    return false;
  }
  // MXNet calls backward for this operator instead.
  if (pending_) pending_->end(device_, original);
  return true;
}

}  // namespace gluon_syncbn::op

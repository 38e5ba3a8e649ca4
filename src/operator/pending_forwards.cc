#include "operator/pending_forwards.h"

#include "common/error.h"

namespace gluon_syncbn::op {

void PendingForwards::begin(const Device& device, const std::shared_ptr<void>& op,
                            bool ran_before) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Pending& pending = pending_[device];
  const auto other = pending.op.lock();
  if (other == op) {
    pending.awaits_backward = false;
    return;
  }
  if (other && pending.awaits_backward && (ran_before || pending.ran_before)) {
    throw Error("a network hybridized with static_shape=True was called twice on " + device.name() +
                " before backward; MXNet keeps no order between these calls. Hybridize it without "
                "static_shape");
  }
  pending = {op, ran_before, true};
}

void PendingForwards::end(const Device& device, const std::shared_ptr<void>& op) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pending_.find(device);
  if (found != pending_.end() && found->second.op.lock() == op) pending_.erase(found);
}

}  // namespace gluon_syncbn::op

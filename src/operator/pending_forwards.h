#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "common/device.h"

namespace gluon_syncbn::op {

/// The training forwards of one graph node that await their backward pass, on every device.
///
/// A static graph runs the same operator in every step. MXNet does not order two copies of an
/// operator, as in a network that is called twice before backward. Devices could then pair
/// different calls. begin() throws in the first step that shows this.
///
/// An operator that runs again without backward awaits no backward pass. Its program only moves the
/// running statistics, as a Module does that is bound again for a smaller last batch.
class PendingForwards {
 public:
  /// `ran_before` says whether `op` has begun a training forward before this one. Throws Error.
  void begin(const Device& device, const std::shared_ptr<void>& op, bool ran_before);
  void end(const Device& device, const std::shared_ptr<void>& op);

 private:
  struct Pending {
    std::weak_ptr<void> op;
    bool ran_before = false;
    bool awaits_backward = true;
  };

  std::mutex mutex_;
  std::map<Device, Pending> pending_;
};

}  // namespace gluon_syncbn::op

#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "common/device.h"
#include "operator/turns.h"

namespace gluon_syncbn::op {

/// The training forwards of one graph node, on every device. MXNet orders them less than the layer
/// needs in three kinds of program. Each shows within the first steps, and is an error then.
///
/// - A static graph runs the same operator in every step. MXNet does not order two copies of an
///   operator, as in a network that is called twice before backward. Devices could then pair
///   different calls.
/// - MXNet shares the node between all models that are made of one symbol, and does not order their
///   calls. Models have running statistics of their own, and train in turns.
/// - A symbol may be for one device, and train on several in turns.
class NodeCalls {
 public:
  /// A forward that synchronizes. `ran_before` says whether `op` has begun a training forward
  /// before this one. Throws Error.
  void begin(const Device& device, const void* running_mean, const std::shared_ptr<void>& op,
             bool ran_before);
  /// An operator that runs again without backward awaits no backward pass. Its program only moves
  /// the running statistics, as a Module does that is bound again for a smaller last batch.
  void end(const Device& device, const std::shared_ptr<void>& op);

  /// A forward that is for one device. Throws Error if several devices train.
  void begin_alone(const Device& device);

 private:
  static constexpr std::size_t kWindowOfModels = 4;
  static constexpr std::size_t kWindowOfDevices = 64;

  struct OfDevice {
    Turns<const void*> models{kWindowOfModels};
    const void* running_mean = nullptr;
    // Of the last forward, if it awaits its backward pass.
    std::weak_ptr<void> op;
    bool ran_before = false;
    bool awaits_backward = false;
  };

  std::mutex mutex_;
  std::map<Device, OfDevice> devices_;
  Turns<Device> alone_{kWindowOfDevices};
};

}  // namespace gluon_syncbn::op

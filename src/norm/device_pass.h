#ifndef GLUON_SYNCBN_NORM_DEVICE_PASS_H_
#define GLUON_SYNCBN_NORM_DEVICE_PASS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "norm/partial_statistics.h"

namespace gluon_syncbn {

class DevicePass;
/// In the order of devices.
using DevicePasses = std::vector<std::shared_ptr<DevicePass>>;

/// The forward or backward pass of one device, as far as it has to do with other devices. The
/// backend that made it computes it.
///
/// Each device begins its own pass, on its own thread. The last device to arrive then finishes the
/// passes of all. If there are other processes, it first reduces them to what these have to know,
/// and finishes them with the answer. A pass that has begun is finished or fails, once.
class DevicePass {
 public:
  using Then = std::function<void(const PartialStatistics& merged, const std::string& error)>;

  virtual ~DevicePass() = default;

  /// Computes the partial statistics of this device. As soon as `all_are_coming`, it may leave the
  /// rest to finish(), which can compute that of all devices together; if `all_are_coming` is
  /// empty it may not. Throws Error.
  virtual void begin(const std::function<bool()>& all_are_coming) = 0;

  /// Calls `then` exactly once, now or later, from any thread, with the partial statistics of
  /// `passes`, of which this is one, merged in the order of devices. Does not throw.
  virtual void reduce(const DevicePasses& passes, Then then) = 0;

  /// All devices have come. Called for one after the other, before they are finished and while no
  /// other passes meet: what is decided here is decided in one order on all devices.
  virtual void met() {}

  /// Computes all that is left in `passes`, of which this is one and the others are like it, and
  /// tells each owner that it is done, or why it failed. `processes` are the partial statistics of
  /// all processes in their order; if there are none, `passes` are all there is. Does not throw.
  virtual void finish(const DevicePasses& passes,
                      const std::vector<PartialStatistics>& processes) = 0;

  /// Ends the pass with an error: its devices have not met. Does not throw.
  virtual void fail(const std::string& error) = 0;
};

/// Lets `passes` meet and `last`, which is one of them, finish all. Does not throw.
void finish_all(DevicePass* last, const DevicePasses& passes,
                const std::vector<PartialStatistics>& processes);

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_NORM_DEVICE_PASS_H_

#ifndef GLUON_SYNCBN_NORM_DEVICE_PASS_H_
#define GLUON_SYNCBN_NORM_DEVICE_PASS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace gluon_syncbn {

class Share;
/// In the order of devices.
using Shares = std::vector<std::shared_ptr<Share>>;

/// The share of one device in a pass of a round, where devices have memory and cores in common:
/// each brings its share to their meeting, and whoever comes last computes what is left of all of
/// them.
class Share {
 public:
  using Done = std::function<void(const std::string& error)>;
  /// Runs a task on a thread of a device, later.
  using Post = std::function<void(std::function<void()> task)>;

  virtual ~Share() = default;

  /// Computes what needs no other device, until all are coming. Throws Error.
  virtual void begin(const std::function<bool()>& all_are_coming) = 0;

  /// Computes all that is left in `shares`, of which this is one and the others are like it, and
  /// tells each that it is done, or why it failed; this one last. Does not throw.
  virtual void finish(const Shares& shares) = 0;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_NORM_DEVICE_PASS_H_

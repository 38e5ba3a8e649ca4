#ifndef GLUON_SYNCBN_SYNC_ATTENDANCE_H_
#define GLUON_SYNCBN_SYNC_ATTENDANCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "common/device.h"
#include "sync/membership.h"

namespace gluon_syncbn {

/// Knows the devices that a reduction waits for.
class Attendance {
 public:
  virtual ~Attendance() = default;
  /// "Came: cpu(0). Missing: cpu(1). Usual causes: ...", for a message.
  virtual std::string describe(const std::set<Device>& present) const = 0;
  /// Called if the reduction has failed for want of a device, before anybody is told.
  virtual void timed_out() = 0;
  /// Called if it has failed before that, and the devices that are missing may still come.
  virtual void failed_at_once() = 0;
  /// " (how to set the timeout)", for a message.
  virtual std::string timeout_advice() const { return ""; }
};

/// That of the round `number`. `elsewhere` tells, in whole sentences, who waits in vain under the
/// same key.
std::shared_ptr<Attendance> forward_attendance(std::shared_ptr<Membership> members,
                                               std::uint64_t number,
                                               std::function<std::string()> elsewhere);
std::shared_ptr<Attendance> backward_attendance(std::shared_ptr<Membership> members);

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_SYNC_ATTENDANCE_H_

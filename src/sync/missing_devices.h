#ifndef GLUON_SYNCBN_SYNC_MISSING_DEVICES_H_
#define GLUON_SYNCBN_SYNC_MISSING_DEVICES_H_

#include <set>
#include <string>

#include "common/device.h"
#include "common/direction.h"

namespace gluon_syncbn {

class SyncGroup;

/// Says in whole sentences which devices came to a meeting, which are missing, and the usual
/// causes.
std::string describe_missing(const SyncGroup& group, const std::set<Device>& present,
                             Direction direction);

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_SYNC_MISSING_DEVICES_H_

#pragma once

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

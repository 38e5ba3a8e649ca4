#pragma once

#include <set>
#include <string>

#include "common/device.h"
#include "common/watchdog.h"
#include "sync/barrier.h"

namespace gluon_syncbn {

/// A slot of a barrier whose passes wait.
struct Wait {
  std::string name;  ///< "SyncBatchNorm 'bn0' round 3 forward"
  Direction direction;
  std::set<Device> present;
  std::string processes;  ///< which are missing; "" while devices of this process are
  Calls calls;
};

/// The warning that passes wait.
std::string reminder(const Barrier& barrier, const Wait& wait, Seconds waited, Seconds limit,
                     const ProgramState& program);
/// The error of passes whose wait ends.
std::string ending_error(const Barrier& barrier, const Wait& wait, Seconds waited,
                         const Ending& ending);

}  // namespace gluon_syncbn

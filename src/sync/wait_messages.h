#pragma once

#include <memory>
#include <set>
#include <string>

#include "common/device.h"
#include "common/watchdog.h"
#include "distributed/process_rounds.h"

namespace gluon_syncbn {

class SyncGroup;

/// A meeting that waits.
struct Wait {
  std::string meeting;
  Direction direction;
  std::set<Device> present;
  /// The exchange for which the meeting waits; null while it waits for devices of this process.
  std::shared_ptr<ProcessRound> processes;
};

/// Says in whole sentences which devices or processes are missing, and the likeliest causes. Each
/// subject has its own line.
std::string description(const SyncGroup& group, const Wait& wait, const ProgramState& program = {});
/// The warning that a meeting waits.
std::string reminder(const SyncGroup& group, const Wait& wait, Waiting::Seconds waited,
                     Waiting::Seconds limit, const ProgramState& program);
/// The error of a meeting that has waited until the timeout.
std::string timeout_error(const SyncGroup& group, const Wait& wait, Waiting::Seconds waited);

}  // namespace gluon_syncbn

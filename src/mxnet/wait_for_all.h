#pragma once

#include <string>

#include "common/watchdog.h"

namespace gluon_syncbn::mxnet {

/// Waits for all operations of the engine and for the ErrorQueue. Ends waits as `ending` says, once
/// the program makes no more calls. Returns the first unread error, or "".
std::string wait_for_all(const Ending& ending);

/// The same for the passes of this library alone: an operation of Horovod may wait for other
/// processes, which may never come. Leaves all errors. Returns false if the process computes for a
/// minute.
bool wait_for_passes(const Ending& ending);

}  // namespace gluon_syncbn::mxnet

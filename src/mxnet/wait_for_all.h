#pragma once

#include <string>

#include "common/watchdog.h"

namespace gluon_syncbn::mxnet {

/// Waits for all operations of the engine and for the ErrorQueue. Interrupts each Waiting that
/// waits for calls which the program does not make in the meantime. Returns the first unread error,
/// or "".
std::string wait_for_all(const Interruption& interruption);

}  // namespace gluon_syncbn::mxnet

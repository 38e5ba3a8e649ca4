// Faults: before a fork, MXNet ends the threads of custom operators and then waits for all
// operations
//   (atfork_prepare in mxnet/src/initialize.cc). That wait takes the unread errors from all arrays
//   (WaitForAll in mxnet/src/engine/threaded_engine.cc).
// Met by: multiprocessing, or a DataLoader with workers, while operations are running.
// Without this file: an operation that calls a custom operator in between waits forever, or
// crashes.
//   An unread error is thrown through the handler, which ends the process. The program could read
//   arrays that no operation has written.
// Delete it when MXNet waits first, and keeps the errors.

#pragma once

#include "mxnet/c_api.h"

namespace gluon_syncbn::mxnet {

/// Calls its argument for every array that the program holds.
using ArrayVisitor = void (*)(NDArrayHandle array);
using LiveArrays = void (*)(ArrayVisitor visitor);

constexpr const char* kForked =
    "the process forked before all devices had come; call all devices before you fork, as "
    "multiprocessing and a DataLoader with workers do";

/// Makes forks safe while operations are running. A fork of this process now waits until the engine
/// has no operation left. Each round that needs a call of the forking thread fails with kForked.
/// Unread errors are still there after the fork, in the parent and in the child. Throws
/// std::bad_alloc.
void survive_forks(LiveArrays live_arrays);

/// Call this after loading a library with fork handlers of its own, if that library should find no
/// operation running at a fork. Does nothing before survive_forks(). Throws std::bad_alloc.
void run_before_later_fork_handlers();

/// Makes forks call `live_arrays` no more, because the program ends.
void forget_live_arrays();

}  // namespace gluon_syncbn::mxnet

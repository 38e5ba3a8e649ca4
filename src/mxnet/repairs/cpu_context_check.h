// Fault: several settings of MXNet make CPU contexts wait for each other or return wrong numbers:
//   oneDNN (the copy of a custom operator's input is gone before the operator reads it), and an
//   engine that runs operations at once. MXNet reads them at its first operator.
// Met by: an import of this package after an operator has run.
// Without this file: wrong numbers, or a wait until the timeout. Python sets what can be set
//   (gluon_syncbn/cpu_contexts.py).
// Delete it when custom operators may read inputs in oneDNN's layouts.

#pragma once

#include <string>

namespace gluon_syncbn::mxnet {

/// Checks whether MXNet's settings let operators run asynchronously on one CPU context, or on
/// several. Writes an error message of at most `size` bytes with its terminating zero, or "".
using CpuContextCheck = void (*)(int several, char* message, int size);

/// Whether the libmxnet of this file has run an operator, and so has read its settings. False if it
/// is not known.
bool operators_have_run(const char* libmxnet);

void set_cpu_context_check(CpuContextCheck check);

/// Throws Error with the message of the check. After the check has passed once, it is not called
/// again.
void require_safe_cpu_contexts(const std::string& layer, bool several);

}  // namespace gluon_syncbn::mxnet

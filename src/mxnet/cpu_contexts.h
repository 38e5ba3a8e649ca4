#ifndef GLUON_SYNCBN_MXNET_CPU_CONTEXTS_H_
#define GLUON_SYNCBN_MXNET_CPU_CONTEXTS_H_

#include <string>

namespace gluon_syncbn::mxnet {

/// Judges whether MXNet's settings let operators on CPU contexts run asynchronously. Writes a
/// message of at most `size` bytes with the terminating zero, empty where all is well.
using CpuContextCheck = void (*)(int synchronized, char* message, int size);

void set_cpu_context_check(CpuContextCheck check);

/// Throws Error where the check objects. Asks once per thread, because MXNet keeps its workspaces
/// per thread that calls operators.
void require_safe_cpu_contexts(const std::string& layer, bool synchronized);

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_CPU_CONTEXTS_H_

#ifndef GLUON_SYNCBN_MXNET_CPU_CONTEXTS_H_
#define GLUON_SYNCBN_MXNET_CPU_CONTEXTS_H_

#include <string>

namespace gluon_syncbn::mxnet {

/// Judges whether MXNet's settings let operators on CPU contexts run asynchronously. Writes a
/// message of at most `size` bytes with the terminating zero, empty where all is well.
using CpuContextCheck = void (*)(int several, char* message, int size);

void set_cpu_context_check(CpuContextCheck check);

/// Throws Error where the check objects to one context, or to several. Asks until it does not.
void require_safe_cpu_contexts(const std::string& layer, bool several);

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_CPU_CONTEXTS_H_

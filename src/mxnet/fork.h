#ifndef GLUON_SYNCBN_MXNET_FORK_H_
#define GLUON_SYNCBN_MXNET_FORK_H_

#include "mxnet/c_api.h"

namespace gluon_syncbn::mxnet {

/// Calls its argument for every array that the program holds.
using ArrayVisitor = void (*)(NDArrayHandle array);
using LiveArrays = void (*)(ArrayVisitor visitor);

constexpr const char* kForked =
    "the process forked before all devices had come; call all devices before you fork, as "
    "multiprocessing and a DataLoader with workers do";

/// From now on, whoever forks this process waits until the engine has no operation left, and what
/// waits for devices that nobody can call meanwhile fails with kForked. Errors that nobody has read
/// are still there after the fork, in parent and child. Throws std::bad_alloc.
void survive_forks(LiveArrays live_arrays);

/// Asks for no arrays any more, as the program ends.
void forget_live_arrays();

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_FORK_H_

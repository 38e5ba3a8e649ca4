#ifndef GLUON_SYNCBN_MXNET_FORK_H_
#define GLUON_SYNCBN_MXNET_FORK_H_

namespace gluon_syncbn::mxnet {

/// From now on, whoever forks this process waits until the engine has no operation left. The
/// process ends if one of them failed and nobody has read its error, as MXNet ends it: arrays that
/// the operation should have written would pass for good. Throws std::bad_alloc.
void wait_before_forks();

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_FORK_H_

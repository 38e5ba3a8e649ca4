#ifndef GLUON_SYNCBN_MXNET_ONE_THREAD_EACH_H_
#define GLUON_SYNCBN_MXNET_ONE_THREAD_EACH_H_

#include <vector>

namespace gluon_syncbn::mxnet {

/// Lets the workers of these CPU contexts compute with one thread each, now and after every fork:
/// the OpenBLAS of MXNet's packages waits for ever if a second worker wants several threads while
/// one has them. Throws Error if the engine takes no operation.
void use_one_thread_each(const std::vector<int>& device_ids);

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_ONE_THREAD_EACH_H_

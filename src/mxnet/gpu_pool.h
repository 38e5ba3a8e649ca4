#ifndef GLUON_SYNCBN_MXNET_GPU_POOL_H_
#define GLUON_SYNCBN_MXNET_GPU_POOL_H_

#include <cstddef>
#include <memory>

namespace gluon_syncbn::mxnet {

/// Memory of gpu(index) from MXNet's pool, which empties itself where CUDA has no more; null where
/// that does not help.
///
/// (MXStorageEmptyCache of MXNet 1.9.1 takes no lock: where another thread allocates at that time,
/// it gets memory that is being freed.)
std::shared_ptr<void> lend_from_pool(int index, std::size_t bytes);

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_GPU_POOL_H_

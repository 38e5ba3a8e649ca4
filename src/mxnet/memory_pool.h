#pragma once

#include <cstddef>
#include <memory>

#include "cuda/runtime.h"

namespace gluon_syncbn::mxnet {

/// Lends memory of gpu(index), or pinned memory of the host, from MXNet's pool. The pool empties
/// itself if CUDA has no free memory. Returns null if that does not help. (MXStorageEmptyCache of
/// MXNet 1.9.1 takes no lock: a thread that allocates meanwhile gets memory that is being freed.)
std::shared_ptr<void> lend_from_pool(cuda::Memory::Place place, int index, std::size_t bytes);

}  // namespace gluon_syncbn::mxnet

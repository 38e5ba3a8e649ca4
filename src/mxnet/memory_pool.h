#pragma once

#include <cstddef>
#include <memory>

#include "cuda/runtime.h"

namespace gluon_syncbn::mxnet {

/// Lends memory of gpu(index), or pinned memory of the host, from MXNet's pool. If CUDA has no free
/// memory, the pool empties itself first. Returns null if that does not help. MXStorageEmptyCache
/// would take no lock in MXNet 1.9.1: a thread that allocates would get memory that is being freed.
std::shared_ptr<void> lend_from_pool(cuda::Memory::Place place, int index, std::size_t bytes);

}  // namespace gluon_syncbn::mxnet

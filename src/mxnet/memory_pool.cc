#include "mxnet/memory_pool.h"

#include <cstdint>

#include "common/layout.h"
#include "mxnet/ndarray.h"

namespace gluon_syncbn::mxnet {

std::shared_ptr<void> lend_from_pool(cuda::Memory::Place place, int index, std::size_t bytes) {
  const int context = place == cuda::Memory::Place::kDevice ? kGPUContext : kPinnedContext;
  constexpr int kAtOnce = 0;  // not at the first use
  const auto length = divide_up(static_cast<std::int64_t>(bytes), sizeof(double));
  NDArrayHandle handle = nullptr;
  if (api().NDArrayCreate64(&length, 1, context, index, kAtOnce, kFloat64, &handle) != 0) {
    return nullptr;
  }
  const auto array = std::make_shared<NDArray>(handle);
  return {array, array->data<void>()};
}

}  // namespace gluon_syncbn::mxnet

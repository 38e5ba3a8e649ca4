#include "mxnet/gpu_pool.h"

#include <cstdint>

#include "mxnet/c_api.h"
#include "mxnet/ndarray.h"

namespace gluon_syncbn::mxnet {

std::shared_ptr<void> lend_from_pool(int index, std::size_t bytes) {
  constexpr int kAtOnce = 0;  // not when it is used first
  const auto length = static_cast<std::int64_t>((bytes + sizeof(double) - 1) / sizeof(double));
  NDArrayHandle handle = nullptr;
  if (api().NDArrayCreateEx64(&length, 1, kGPUContext, index, kAtOnce, kFloat64, &handle) != 0) {
    return nullptr;
  }
  const auto array = std::make_shared<NDArray>(handle);
  return {array, array->data<void>()};
}

}  // namespace gluon_syncbn::mxnet

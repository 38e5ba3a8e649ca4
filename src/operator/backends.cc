#include "operator/backends.h"

#include <mutex>

#include "common/error.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "cuda/memory.h"
#include "mxnet/memory_pool.h"

namespace gluon_syncbn::op {
namespace {

std::shared_ptr<Backend> gpu_backend(const Device& device, const std::string& layer) {
  static std::once_flag once;
  std::call_once(once, [] { cuda::set_lender(mxnet::lend_from_pool); });
  return cuda::backend_of(device.index, layer);
}

}  // namespace

std::shared_ptr<Backend> backend_of(const Device& device, const std::string& layer) {
  if (device.type == "cpu") return cpu::backend();
  if (device.type == "gpu") return gpu_backend(device, layer);
  throw Error(layer + ": called on " + device.name() +
              " where a context of type cpu or gpu is expected");
}

}  // namespace gluon_syncbn::op

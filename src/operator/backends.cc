#include "operator/backends.h"

#include <mutex>

#include "common/error.h"
#include "cpu/backend.h"

#ifdef GLUON_SYNCBN_CUDA
#include "cuda/backend.h"
#include "cuda/memory.h"
#include "cuda/runtime.h"
#include "mxnet/memory_pool.h"
#endif

namespace gluon_syncbn::op {
namespace {

#ifdef GLUON_SYNCBN_CUDA
std::shared_ptr<Backend> gpu_backend(const Device& device, const std::string& layer) {
  static std::once_flag once;
  std::call_once(once, [] { cuda::set_lender(mxnet::lend_from_pool); });
  return cuda::backend_of(device.index, layer);
}
#else
constexpr const char* kHowToBuild =
    "install it where CUDA's nvcc is, with GLUON_SYNCBN_CUDA=ON pip install .";

std::shared_ptr<Backend> gpu_backend(const Device& device, const std::string& layer) {
  throw Error(layer + ": called on " + device.name() +
              ", but gluon_syncbn was built for CPU contexts only; " + kHowToBuild);
}
#endif

}  // namespace

std::shared_ptr<Backend> backend_of(const Device& device, const std::string& layer) {
  if (device.type == "cpu") return cpu::backend();
  if (device.type == "gpu") return gpu_backend(device, layer);
  throw Error(layer + ": called on " + device.name() +
              " where a context of type cpu or gpu is expected");
}

#ifdef GLUON_SYNCBN_CUDA
std::string gpu_build() { return GLUON_SYNCBN_CUDA; }
std::string gpu_devices() { return cuda::describe_devices(); }
#else
std::string gpu_build() { return std::string("not built; ") + kHowToBuild; }
std::string gpu_devices() { return "unknown"; }
#endif

}  // namespace gluon_syncbn::op

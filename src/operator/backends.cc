#include "operator/backends.h"

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "common/error.h"
#include "cpu/backend.h"

#ifdef GLUON_SYNCBN_CUDA
#include "cuda/backend.h"
#include "cuda/memory.h"
#include "cuda/runtime.h"
#include "mxnet/ndarray.h"
#endif

namespace gluon_syncbn::op {
namespace {

#ifdef GLUON_SYNCBN_CUDA
/// Lends memory of gpu(index), or pinned memory of the host, from MXNet's pool. The pool empties
/// itself if CUDA has no free memory. Returns null if that does not help. (MXStorageEmptyCache of
/// MXNet 1.9.1 takes no lock: a thread that allocates meanwhile gets memory that is being freed.)
std::shared_ptr<void> lend_from_pool(cuda::Memory::Place place, int index, std::size_t bytes) {
  using namespace mxnet;
  const int context = place == cuda::Memory::Place::kDevice ? kGPUContext : kPinnedContext;
  constexpr int kAtOnce = 0;  // not at the first use
  const auto length = static_cast<std::int64_t>((bytes + sizeof(double) - 1) / sizeof(double));
  NDArrayHandle handle = nullptr;
  if (api().NDArrayCreate64(&length, 1, context, index, kAtOnce, kFloat64, &handle) != 0) {
    return nullptr;
  }
  const auto array = std::make_shared<NDArray>(handle);
  return {array, array->data<void>()};
}

std::shared_ptr<Backend> gpu_backend(const Device& device, const std::string& layer) {
  static std::once_flag once;
  std::call_once(once, [] { cuda::set_lender(lend_from_pool); });
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
  if (device.type == "cpu") return cpu_backend();
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

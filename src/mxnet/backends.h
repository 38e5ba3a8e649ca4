#ifndef GLUON_SYNCBN_MXNET_BACKENDS_H_
#define GLUON_SYNCBN_MXNET_BACKENDS_H_

#include <memory>
#include <string>

#include "common/device.h"
#include "norm/backend.h"

namespace gluon_syncbn::mxnet {

/// What computes for a context. Throws Error naming `layer` where this build has nothing for it.
std::shared_ptr<Backend> backend_of(const Device& device, const std::string& layer);

/// Lets the calling thread go on with the GPU that it had. MXNet changes that of any thread that
/// frees arrays or pushes operations of another GPU, and relies on it in its own workers.
class KeepsGpu {
 public:
  KeepsGpu();
  ~KeepsGpu();
  KeepsGpu(const KeepsGpu&) = delete;
  KeepsGpu& operator=(const KeepsGpu&) = delete;

 private:
  void* const before_;
};

/// The CUDA version and architectures that this build is for, or how to build for some.
std::string gpu_build();

/// The GPUs of the machine, as far as this build can tell.
std::string gpu_devices();

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_BACKENDS_H_

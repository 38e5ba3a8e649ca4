#ifndef GLUON_SYNCBN_CUDA_PASSES_H_
#define GLUON_SYNCBN_CUDA_PASSES_H_

#include <memory>

#include "cuda/gpu.h"
#include "norm/backend.h"
#include "norm/device_pass.h"

namespace gluon_syncbn::cuda {

/// Passes of one GPU context. Their calls put kernels on its stream and return; owners hear from
/// another thread when these are done.
std::shared_ptr<DevicePass> pass_on_gpu(Gpu* gpu, Backend::Forward pass);
std::shared_ptr<DevicePass> pass_on_gpu(Gpu* gpu, Backend::Backward pass);

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_PASSES_H_

#ifndef GLUON_SYNCBN_CUDA_CHECK_H_
#define GLUON_SYNCBN_CUDA_CHECK_H_

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/runtime.h"

namespace gluon_syncbn::cuda {

/// Throws Error naming `what` and the GPU where `status`, which a call has returned, is not
/// success. The next who asks for the last error of this thread does not get this one.
void check(cudaError_t status, const std::string& what, int ordinal);

cudaStream_t native(const Stream& stream);

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_CHECK_H_

#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace gluon_syncbn::cuda {

/// Throws Error, which names `what` and the GPU, unless the `status` of a call is success. It also
/// clears the last error of this thread.
void check(cudaError_t status, const std::string& what, int ordinal);

}  // namespace gluon_syncbn::cuda

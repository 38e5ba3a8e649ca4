#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "common/error.h"

namespace gluon_syncbn::cuda {

/// Throws Error, which names `what` and the GPU, unless the `status` of a call is success. It also
/// clears the last error of this thread.
inline void check(cudaError_t status, const std::string& what, int ordinal) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw Error("CUDA: " + what + " on gpu(" + std::to_string(ordinal) +
              ") failed: " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")");
}

}  // namespace gluon_syncbn::cuda

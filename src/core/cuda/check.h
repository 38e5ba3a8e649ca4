#ifndef GLUON_SYNCBN_CORE_CUDA_CHECK_H_
#define GLUON_SYNCBN_CORE_CUDA_CHECK_H_

#include <cuda_runtime_api.h>

#include <string>

#include "core/cuda/runtime.h"

namespace gluon_syncbn::cuda {

/// Throws Error naming `what` and the GPU where `status` is not success.
void check(cudaError_t status, const std::string& what, int ordinal);

/// Makes a GPU that of the calling thread, and its former one after that.
class OnDevice {
 public:
  explicit OnDevice(int ordinal);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

cudaStream_t native(const Stream& stream);

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CORE_CUDA_CHECK_H_

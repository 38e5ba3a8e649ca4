#ifndef GLUON_SYNCBN_CUDA_INVERTIBLE_CHECK_H_
#define GLUON_SYNCBN_CUDA_INVERTIBLE_CHECK_H_

#include <cstddef>
#include <string>

#include "backend/backend.h"
#include "cuda/gpu.h"
#include "norm/invertible.h"

namespace gluon_syncbn::cuda {

/// Whether gamma and beta, which lie on the GPU, let a backward pass do without its input. No
/// thread waits for that: a kernel leaves the answer in memory of the host, for when the pass is
/// done.
class InvertibleCheck {
 public:
  /// Puts the kernel on the stream.
  InvertibleCheck(Gpu* gpu, const Backend::Backward& pass);

  /// What is wrong with the first channel that is not invertible, or "". Once the kernel is done.
  std::string error() const;

 private:
  const Invertible invertible_;
  std::size_t blocks_ = 0;
  Pool<Memory>::Lease found_;
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_INVERTIBLE_CHECK_H_

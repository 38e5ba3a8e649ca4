#ifndef GLUON_SYNCBN_CUDA_KERNELS_TWO_SUMS_H_
#define GLUON_SYNCBN_CUDA_KERNELS_TWO_SUMS_H_

#include "cuda/kernels/numbers.h"

namespace gluon_syncbn::cuda {

/// What both passes of sums accumulate: deviations and their squares, or dy and dy * (x - mean).
template <class R>
struct DoubleFloatPair {
  DoubleFloat<R> first;
  DoubleFloat<R> second;

  GLUON_SYNCBN_HOST_DEVICE void clear() {
    first.clear();
    second.clear();
  }
  GLUON_SYNCBN_HOST_DEVICE void add(const DoubleFloatPair& other) {
    first.add(other.first);
    second.add(other.second);
  }
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_KERNELS_TWO_SUMS_H_

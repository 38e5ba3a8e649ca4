#ifndef GLUON_SYNCBN_TESTS_FAKE_CUDA_LIBRARIES_CUDNN_TENSOR_H_
#define GLUON_SYNCBN_TESTS_FAKE_CUDA_LIBRARIES_CUDNN_TENSOR_H_

#include <cstdint>
#include <vector>

#include "kernels/values.h"
#include "libraries/handle.h"

namespace fake_cuda {

/// What a descriptor of cuDNN says of a tensor or filter: axes are batch, channels, then space,
/// however they lie in memory.
struct Tensor {
  static constexpr int kMostAxes = 5;
  int type;
  int axes;
  int shape[kMostAxes];
  int strides[kMostAxes];

  std::int64_t size() const;
  /// Of an axis of space; 1 beyond the last one.
  int space(int axis) const { return axis + 2 < axes ? shape[axis + 2] : 1; }
  /// Elements of a channel of an image.
  std::int64_t area() const { return size() / (shape[0] * shape[1]); }
};

/// Elements in the order of the axes.
using Numbers = std::vector<double>;

/// A tensor with its memory.
struct Array {
  Tensor tensor;
  Values values;

  Array(const Tensor* descriptor, const void* address)
      : tensor(*descriptor), values(array(descriptor->type, address)) {}

  Numbers read() const;
  /// alpha times these and beta times what is there, which is not read if beta is 0.
  void write(const Numbers& numbers, double alpha, double beta) const;
};

/// How a result is mixed with what is there.
struct Blend {
  double alpha;
  double beta;

  Blend(const Tensor* of, const void* given_alpha, const void* given_beta)
      : alpha(scalar(of->type, given_alpha)), beta(scalar(of->type, given_beta)) {}
};

}  // namespace fake_cuda

#endif  // GLUON_SYNCBN_TESTS_FAKE_CUDA_LIBRARIES_CUDNN_TENSOR_H_

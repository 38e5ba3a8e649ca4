#ifndef GLUON_SYNCBN_CUDA_KERNELS_NUMBERS_H_
#define GLUON_SYNCBN_CUDA_KERNELS_NUMBERS_H_

#include <cstdint>

#include "common/half.h"
#include "common/host_device.h"
#include "common/real.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

namespace gluon_syncbn::cuda {

GLUON_SYNCBN_HOST_DEVICE inline float to_real(float value) { return value; }
GLUON_SYNCBN_HOST_DEVICE inline double to_real(double value) { return value; }
GLUON_SYNCBN_HOST_DEVICE inline float to_real(Half value) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(value.bits));
#else
  return to_float(value);
#endif
}

template <class T>
GLUON_SYNCBN_HOST_DEVICE T from_real(Real<T> value) {
  return value;
}
template <>
GLUON_SYNCBN_HOST_DEVICE inline Half from_real<Half>(float value) {
#ifdef __CUDA_ARCH__
  Half half;
  half.bits = __half_as_ushort(__float2half_rn(value));
  return half;
#else
  return to_half(value);
#endif
}

/// Neighbours in memory that are moved at once.
template <class T, int N>
struct alignas(sizeof(T) * N) AlignedVector {
  T at[N];
};

/// Elements that 16 bytes hold: the widest access there is.
template <class T>
constexpr int kWidest = 16 / static_cast<int>(sizeof(T));

/// An unevaluated sum of two numbers, which has twice the digits of one. It takes the place of
/// double, of which many GPUs have a 64th of the throughput of float.
///
/// D. E. Knuth, "The Art of Computer Programming", volume 2, section 4.2.2, theorem B (TwoSum).
template <class R>
struct DoubleFloat {
  R high;
  R low;

  GLUON_SYNCBN_HOST_DEVICE void clear() { high = low = R(0); }
  GLUON_SYNCBN_HOST_DEVICE void add(R value) {
    const R sum = high + value;
    const R of_value = sum - high;
    low += (high - (sum - of_value)) + (value - of_value);
    high = sum;
  }
  GLUON_SYNCBN_HOST_DEVICE void add(const DoubleFloat& other) {
    add(other.high);
    low += other.low;
  }
  GLUON_SYNCBN_HOST_DEVICE double value() const {
    return static_cast<double>(high) + static_cast<double>(low);
  }
};

/// Mean and M2 of `count` elements from the sums of their deviations from a pivot and of the
/// squares of these. The pivot is near the mean, so that little cancels.
GLUON_SYNCBN_HOST_DEVICE inline void unshift(double count, double pivot, double first,
                                             double second, double* mean, double* m2) {
  *mean = count > 0 ? pivot + first / count : 0;
  const double rest = count > 0 ? second - first / count * first : 0;
  // Rounding may leave less than nothing; NaN stays.
  *m2 = rest < 0 ? 0 : rest;
}

/// Per channel: y = (x - mean) * scale + shift.
template <class R>
struct Affine {
  static constexpr int kInputs = 1;

  R mean;
  R scale;
  R shift;

  /// y from {x}.
  GLUON_SYNCBN_HOST_DEVICE R of(const R* elements) const {
    return (elements[0] - mean) * scale + shift;
  }
};

/// Per channel: dx = dy_factor * dy + x_factor * (x - mean) + constant.
template <class R>
struct Gradient {
  static constexpr int kInputs = 2;

  R mean;
  R dy_factor;
  R x_factor;
  R constant;

  /// dx from {dy, x}.
  GLUON_SYNCBN_HOST_DEVICE R of(const R* elements) const {
    return dy_factor * elements[0] + (x_factor * (elements[1] - mean) + constant);
  }
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_KERNELS_NUMBERS_H_

#pragma once

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

/// Neighbours in memory that one access moves.
template <class T, int N>
struct alignas(sizeof(T) * N) AlignedVector {
  T at[N];
};

/// The elements of the widest access, which has 16 bytes.
template <class T>
constexpr int kWidest = 16 / static_cast<int>(sizeof(T));

/// Per channel: y = (x - mean) * scale + shift.
template <class R>
struct Affine {
  R mean;
  R scale;
  R shift;

  /// y from {x}.
  GLUON_SYNCBN_HOST_DEVICE R of(const R* elements) const {
    return (elements[0] - mean) * scale + shift;
  }
};

/// The form in which memory of the GPU keeps it, in accesses of 16 bytes.
template <class R>
struct alignas(16) StoredAffine : Affine<R> {};

/// Per channel: dx = dy_factor * dy + x_factor * (x - mean) + constant.
template <class R>
struct alignas(16) Gradient {
  R mean;
  R dy_factor;
  R x_factor;
  R constant;

  /// dx from {dy, x}. If x_factor is 0, a NaN or infinity in x does not matter.
  GLUON_SYNCBN_HOST_DEVICE R of(const R* elements) const {
    const R centered = x_factor == R(0) ? R(0) : elements[1] - mean;
    return dy_factor * elements[0] + (x_factor * centered + constant);
  }
};

}  // namespace gluon_syncbn::cuda

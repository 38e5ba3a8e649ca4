#pragma once

#include <type_traits>

namespace gluon_syncbn {

/// The type in which elements of T are computed: float for float and Half, double for double. Gamma
/// and beta have the same type.
template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// The difference between the mean and its value rounded to R: x - mean is (x - R(mean)) - rest.
/// The kernels add the rest, times its factor, to their constant term. So the result is exact to R
/// even if the mean is thousands of standard deviations from zero.
template <class R>
inline double rest_of(double mean) {
  return mean - static_cast<double>(static_cast<R>(mean));
}

}  // namespace gluon_syncbn

#ifndef GLUON_SYNCBN_COMMON_REAL_H_
#define GLUON_SYNCBN_COMMON_REAL_H_

#include <type_traits>

#include "common/host_device.h"

namespace gluon_syncbn {

/// Arithmetic is in single precision for float and half data, in double for double. It is also the
/// type of their parameters.
template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// What rounding the mean to R leaves. x - mean is (x - R(mean)) - rest, and the rest, times its
/// factor, goes into the constant term: so the result is exact to R even where the mean is
/// thousands of standard deviations from zero.
template <class R>
GLUON_SYNCBN_HOST_DEVICE inline double rest_of(double mean) {
  return mean - static_cast<double>(static_cast<R>(mean));
}

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_COMMON_REAL_H_

#pragma once

#include <limits>
#include <type_traits>

#include "common/half.h"

namespace gluon_syncbn {

/// The dtypes of data arrays.
enum class DType { kFloat32, kFloat64, kFloat16 };

/// Expands to VISIT(T) for the C++ type T of each dtype.
#define GLUON_SYNCBN_FOR_EACH_DTYPE(VISIT) VISIT(float) VISIT(double) VISIT(Half)

/// The type in which elements of T are computed: float for float and Half, double for double. Gamma
/// and beta have the same type.
template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Binary digits of the significand of T.
template <class T>
inline constexpr int kDigits = std::numeric_limits<T>::digits;
template <>
inline constexpr int kDigits<Half> = 11;

/// The largest rounding error of numbers too small for all digits of T. A float or double of that
/// size may be flushed to zero; a Half keeps the digits that it has.
template <class T>
inline constexpr double kUnderflow = static_cast<double>(std::numeric_limits<T>::min());
template <>
inline constexpr double kUnderflow<Half> = 0x1p-25;

/// The type T of data, and the type P of its gamma, beta and running statistics. As in MXNet's
/// BatchNorm, P is never half precision, which would lose small updates.
template <class T, class P>
struct DTypes {
  using Data = T;
  using Parameter = P;
};

/// Returns visit(DTypes<T, P>()) for the types of `dtype`.
template <class Visit>
auto dispatch(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kFloat64:
      return visit(DTypes<double, double>());
    case DType::kFloat16:
      return visit(DTypes<Half, float>());
    case DType::kFloat32:
      break;
  }
  return visit(DTypes<float, float>());
}

}  // namespace gluon_syncbn

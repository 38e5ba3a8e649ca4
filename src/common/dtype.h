#ifndef GLUON_SYNCBN_COMMON_DTYPE_H_
#define GLUON_SYNCBN_COMMON_DTYPE_H_

#include <limits>

#include "common/half.h"

namespace gluon_syncbn {

/// What arrays of data hold.
enum class DType { kFloat32, kFloat64, kFloat16 };

/// The same as types of C++: VISIT(T) for each.
#define GLUON_SYNCBN_FOR_EACH_DTYPE(VISIT) VISIT(float) VISIT(double) VISIT(Half)

/// The digits of T in base 2.
template <class T>
inline constexpr int kDigits = std::numeric_limits<T>::digits;
template <>
inline constexpr int kDigits<Half> = 11;

/// The error of numbers too small to have all digits. They may be flushed to zero, but for Half.
template <class T>
inline constexpr double kUnderflow = static_cast<double>(std::numeric_limits<T>::min());
template <>
inline constexpr double kUnderflow<Half> = 0x1p-25;

/// Data type T and the type P of gamma, beta and the running statistics of such data, as in MXNet's
/// BatchNorm: half precision would lose small updates.
template <class T, class P>
struct DTypes {
  using Data = T;
  using Parameter = P;
};

/// Returns visit(DTypes<T, P>()) with the types of `dtype`.
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

#endif  // GLUON_SYNCBN_COMMON_DTYPE_H_

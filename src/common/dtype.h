#ifndef GLUON_SYNCBN_COMMON_DTYPE_H_
#define GLUON_SYNCBN_COMMON_DTYPE_H_

#include "common/half.h"

namespace gluon_syncbn {

/// What arrays of data hold.
enum class DType { kFloat32, kFloat64, kFloat16 };

/// What gamma, beta and the running statistics hold for such data, as in MXNet's BatchNorm: half
/// precision would lose small updates.
inline DType parameter_dtype(DType data) {
  return data == DType::kFloat16 ? DType::kFloat32 : data;
}

/// Data type T and parameter type P.
template <class T, class P>
struct DTypes {
  using Data = T;
  using Parameter = P;
};

/// Returns visit(ElementTypes<T, P>()) with the types of `element`.
template <class Visit>
auto dispatch(DType element, const Visit& visit) {
  switch (element) {
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

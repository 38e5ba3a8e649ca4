#ifndef GLUON_SYNCBN_MXNET_DTYPE_H_
#define GLUON_SYNCBN_MXNET_DTYPE_H_

#include <string>

#include "core/error.h"
#include "core/half.h"
#include "mxnet/c_api.h"

namespace gluon_syncbn::mxnet {

inline const char* dtype_name(int dtype) {
  static constexpr const char* kNames[] = {"float32", "float64", "float16", "uint8",
                                           "int32",   "int8",    "int64",   "bool"};
  const bool known = dtype >= 0 && dtype < static_cast<int>(sizeof(kNames) / sizeof(kNames[0]));
  return known ? kNames[dtype] : "an unknown dtype";
}

/// The dtype of gamma, beta and the running statistics for data of `dtype`, as in MXNet's
/// BatchNorm: half precision would lose small updates.
inline DType parameter_dtype(DType dtype) { return dtype == kFloat16 ? kFloat32 : dtype; }

/// Data type T and parameter type P of an operator.
template <class T, class P>
struct Types {
  using Data = T;
  using Parameter = P;
};

/// Calls visit(Types<T, P>()) with the types of `dtype`.
template <class Visit>
void with_types(DType dtype, const Visit& visit) {
  switch (dtype) {
    case kFloat32:
      return visit(Types<float, float>());
    case kFloat64:
      return visit(Types<double, double>());
    case kFloat16:
      return visit(Types<Half, float>());
    default:
      throw Error(std::string("data of ") + dtype_name(dtype) +
                  " where float16, float32 or float64 is expected");
  }
}

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_DTYPE_H_

#pragma once

#include <string>

#include "common/dtype.h"
#include "common/error.h"

namespace gluon_syncbn::mxnet {

/// The numbers of dtypes in MXNet (mxnet/3rdparty/mshadow/mshadow/base.h).
enum MXDType : int { kUnknownDType = -1, kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kInt64 = 6 };

inline const char* dtype_name(int dtype) {
  static constexpr const char* kNames[] = {"float32", "float64", "float16", "uint8",
                                           "int32",   "int8",    "int64",   "bool"};
  const bool known = dtype >= 0 && dtype < static_cast<int>(sizeof(kNames) / sizeof(kNames[0]));
  return known ? kNames[dtype] : "an unknown dtype";
}

/// The dtype of gamma, beta and the running statistics, as in DTypes.
inline MXDType parameter_dtype(MXDType dtype) { return dtype == kFloat16 ? kFloat32 : dtype; }

/// Throws Error if data of this dtype is not supported.
inline DType dtype_of(int dtype) {
  switch (dtype) {
    case kFloat32:
      return DType::kFloat32;
    case kFloat64:
      return DType::kFloat64;
    case kFloat16:
      return DType::kFloat16;
    default:
      throw Error(std::string("data of ") + dtype_name(dtype) +
                  " where float16, float32 or float64 is expected");
  }
}

}  // namespace gluon_syncbn::mxnet

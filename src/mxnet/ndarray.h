#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mxnet/c_api.h"
#include "mxnet/dtype.h"

namespace gluon_syncbn::mxnet {

/// Owns a handle of an array of MXNet.
class NDArray {
 public:
  explicit NDArray(NDArrayHandle handle) : handle_(handle) {}

  /// Makes an array in the memory of the host.
  static NDArray on_cpu(std::int64_t length, MXDType dtype) {
    NDArrayHandle handle = nullptr;
    check(api().NDArrayCreate64(&length, 1, kCPUContext, 0, 0, dtype, &handle),
          "MXNDArrayCreate64");
    return NDArray(handle);
  }

  NDArrayHandle handle() const { return handle_.get(); }

  template <class T>
  T* data() const {
    void* data = nullptr;
    check(api().NDArrayGetData(handle(), &data), "MXNDArrayGetData");
    return static_cast<T*>(data);
  }

  MXDType dtype() const {
    int dtype = kUnknownDType;
    check(api().NDArrayGetDType(handle(), &dtype), "MXNDArrayGetDType");
    return static_cast<MXDType>(dtype);
  }

  std::vector<std::int64_t> shape() const {
    int ndim = 0;
    const int* dims = nullptr;
    check(api().NDArrayGetShape(handle(), &ndim, &dims), "MXNDArrayGetShape");
    return ndim > 0 ? std::vector<std::int64_t>(dims, dims + ndim) : std::vector<std::int64_t>();
  }

  /// Throws Error if the dtype is not one of data.
  std::size_t bytes() const {
    std::size_t bytes = dispatch(dtype_of(dtype()),
                                 [](auto types) { return sizeof(typename decltype(types)::Data); });
    for (const std::int64_t length : shape()) bytes *= static_cast<std::size_t>(length);
    return bytes;
  }

 private:
  struct Free {
    void operator()(void* handle) const { api().NDArrayFree(handle); }
  };
  std::unique_ptr<void, Free> handle_;
};

}  // namespace gluon_syncbn::mxnet

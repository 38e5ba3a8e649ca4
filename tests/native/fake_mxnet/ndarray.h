#pragma once

#include <cstddef>
#include <vector>

#include "fake_mxnet/engine.h"
#include "mxnet/c_api.h"
#include "mxnet/dtype.h"

namespace gluon_syncbn::fake_mxnet {

using Shape = std::vector<int>;
using Values = std::vector<long double>;

/// A handle of the C interface points to one of these. Copies share memory and variable.
class NDArray {
 public:
  NDArray() = default;  // what a custom operator gets for an array that it does not depend on
  /// Of kFloat32 or kInt64. Holds NaN before something is written.
  NDArray(Shape shape, int dtype, const mxnet::Context& context);
  /// Of kFloat32.
  NDArray(Shape shape, const mxnet::Context& context, const Values& values);

  /// Another array of the same memory with a variable of its own, as a custom operator gets it. It
  /// does not keep the memory.
  NDArray alias() const;

  const VariablePtr& variable() const { return variable_; }
  void* data() const { return data_; }
  const Shape& shape() const { return shape_; }
  int dtype() const { return dtype_; }
  const mxnet::Context& context() const { return context_; }
  std::size_t size() const;

  /// Waits, and throws what operations left in the array, which is of kFloat32.
  Values read() const;

 private:
  VariablePtr variable_;
  void* data_ = nullptr;
  Shape shape_;
  int dtype_ = mxnet::kUnknownDType;
  mxnet::Context context_{mxnet::kCPUContext, 0};
};

/// A handle for the library under test, which gives it back by MXNDArrayFree.
void* make_handle(const NDArray& array);
/// Those that were not given back yet, but for memory that was lent.
long handles_given_out();

}  // namespace gluon_syncbn::fake_mxnet

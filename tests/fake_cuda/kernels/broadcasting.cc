// Arrays whose axes of length 1 are repeated.

#include <string>

#include "kernels/forms.h"
#include "kernels/shapes.h"

namespace fake_cuda {

namespace {

constexpr int kMostDimensions = 5;

/// ShapeAndStride of src/operator/tensor/broadcast_reduce_op.h.
struct Shapes {
  std::int32_t in_stride[kMostDimensions];
  std::int32_t out_stride[kMostDimensions];
  std::int32_t in_shape[kMostDimensions];
  std::int32_t out_shape[kMostDimensions];
  std::int32_t axes[kMostDimensions];
  int number_of_axes;
  bool changed;
};

/// mxnet_generic_kernel_ex<binary_broadcast_kernel<dimensions, function>, types...>(
///     size, request, strides of a, strides of b, shape of the output, a, b, output)
Task of_two_arrays(const Launch& launch) {
  const auto& types = launch.name.arguments;
  const Operator function = find_operator(types[0].arguments[1]);
  if (!function) return {};
  const int dimensions = std::stoi(types[0].arguments[0].head);
  const auto size = launch.argument<int>(0);
  const auto request = launch.argument<int>(1);
  const Shape a_strides = shape_of(launch.arguments[2], dimensions);
  const Shape b_strides = shape_of(launch.arguments[3], dimensions);
  const Shape shape = shape_of(launch.arguments[4], dimensions);
  const Values a(types[5], launch.arguments[5]);
  const Values b(types[6], launch.arguments[6]);
  const Values out(types[7], launch.arguments[7]);
  return [=] {
    for (int i = 0; i < size; ++i) {
      const Shape at = unravel(i, shape);
      const double x[] = {a.get(dot(at, a_strides)), b.get(dot(at, b_strides))};
      out.write(i, request, function(x));
    }
  };
}

/// mxnet_generic_kernel<broadcast_kernel_gpu<function>, types...>(
///     size, input, output, shapes, request, dimensions)
Task of_one_array(const Launch& launch) {
  const auto& types = launch.name.arguments;
  const Operator function = find_operator(types[0].arguments[0]);
  if (!function) return {};
  const auto size = launch.argument<int>(0);
  const Values in(types[1], launch.arguments[1]);
  const Values out(types[2], launch.arguments[2]);
  const auto shapes = launch.argument<Shapes>(3);
  const auto request = launch.argument<int>(4);
  const auto dimensions = launch.argument<int>(5);
  const Shape shape = shape_of(shapes.out_shape, dimensions);
  Shape strides = shape_of(shapes.in_stride, dimensions);
  for (int i = 0; i < dimensions; ++i) {
    if (shapes.in_shape[i] == 1) strides[static_cast<std::size_t>(i)] = 0;
  }
  return [=] {
    for (int i = 0; i < size; ++i) {
      const double x = in.get(dot(unravel(i, shape), strides));
      out.write(i, request, function(&x));
    }
  };
}

/// mxnet_generic_kernel<direct_copy<function>, types...>(size, input, output, request), where
/// nothing has to be repeated
Task copy(const Launch& launch) {
  const auto& types = launch.name.arguments;
  const Operator function = find_operator(types[0].arguments[0]);
  if (!function) return {};
  const auto size = launch.argument<int>(0);
  const Values in(types[1], launch.arguments[1]);
  const Values out(types[2], launch.arguments[2]);
  const auto request = launch.argument<int>(3);
  return [=] {
    for (int i = 0; i < size; ++i) {
      const double x = in.get(i);
      out.write(i, request, function(&x));
    }
  };
}

}  // namespace

Task broadcasting(const Launch& launch) {
  if (launch.name.arguments.empty()) return {};
  const std::string& op = launch.name.arguments[0].head;
  if (launch.name.head == "mxnet_generic_kernel_ex") {
    return op == "binary_broadcast_kernel" ? of_two_arrays(launch) : Task();
  }
  if (launch.name.head != "mxnet_generic_kernel") return {};
  if (op == "broadcast_kernel_gpu") return of_one_array(launch);
  return op == "direct_copy" ? copy(launch) : Task();
}

}  // namespace fake_cuda

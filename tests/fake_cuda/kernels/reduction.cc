// Sums over axes, by src/operator/tensor/broadcast_reduce-inl.cuh in MXNet.

#include <string>

#include "die.h"
#include "kernels/forms.h"
#include "kernels/shapes.h"

namespace fake_cuda {
namespace {

Name pointer_to(const Name& type) { return {type.head + "*", {}}; }

/// reduce_kernel<reducer, dimensions, sum's type, type of big, of small, function, unrolled>(
///     size of small, terms, add, big, small, shape of big, of small, of terms, their strides,
///     parts of the terms, transposed)
Task reduce(const Launch& launch, const Operator& function) {
  const auto& types = launch.name.arguments;
  const int dimensions = std::stoi(types[1].head);
  const auto size = launch.argument<int>(0);
  const auto terms = launch.argument<int>(1);
  const int request = launch.argument<bool>(2) ? kAddTo : 1;
  const Values big(pointer_to(types[3]), launch.arguments[3]);
  const Values small(pointer_to(types[4]), launch.arguments[4]);
  const Shape big_shape = shape_of(launch.arguments[5], dimensions);
  const Shape small_shape = shape_of(launch.arguments[6], dimensions);
  const Shape terms_shape = shape_of(launch.arguments[7], dimensions);
  const Shape strides = shape_of(launch.arguments[8], dimensions);
  if (launch.argument<int>(9) != 1) die("a reduction in several parts is not imitated");
  return [=] {
    for (int i = 0; i < size; ++i) {
      const std::int64_t first = ravel(unravel(i, small_shape), big_shape);
      double sum = 0;
      for (int k = 0; k < terms; ++k) {
        const double x = big.get(first + dot(unravel(k, terms_shape), strides));
        sum += function(&x);
      }
      small.write(i, request, sum);
    }
  };
}

/// reduce_kernel_M1<the same without unrolled>(size, add, big, small, shape of big, of small)
Task reduce_one_term(const Launch& launch, const Operator& function) {
  const auto& types = launch.name.arguments;
  const int dimensions = std::stoi(types[1].head);
  const auto size = launch.argument<int>(0);
  const int request = launch.argument<bool>(1) ? kAddTo : 1;
  const Values big(pointer_to(types[3]), launch.arguments[2]);
  const Values small(pointer_to(types[4]), launch.arguments[3]);
  const Shape big_shape = shape_of(launch.arguments[4], dimensions);
  const Shape small_shape = shape_of(launch.arguments[5], dimensions);
  return [=] {
    for (int i = 0; i < size; ++i) {
      const double x = big.get(ravel(unravel(i, small_shape), big_shape));
      small.write(i, request, function(&x));
    }
  };
}

}  // namespace

Task reduction(const Launch& launch) {
  const bool one_term = launch.name.head == "reduce_kernel_M1";
  if (!one_term && launch.name.head != "reduce_kernel") return {};
  if (launch.name.arguments[0].head != "sum") return {};
  const Operator function = find_operator(launch.name.arguments[5]);
  if (!function) return {};
  return one_term ? reduce_one_term(launch, function) : reduce(launch, function);
}

}  // namespace fake_cuda

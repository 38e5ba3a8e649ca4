// Sums over axes, by src/operator/tensor/broadcast_reduce-inl.cuh in MXNet.

#include <string>
#include <utility>
#include <vector>

#include "kernels/forms.h"
#include "kernels/shapes.h"

namespace fake_cuda {
namespace {

Name pointer_to(const Name& type) { return {type.head + "*", {}}; }

/// One of the arrays that terms are made of.
struct Operand {
  Values values;
  Shape whole;
  Shape terms{1};    ///< the axes that are summed over
  Shape strides{0};  ///< of these

  double get(const Shape& sum, int term) const {
    return values.get(ravel(sum, whole) + dot(unravel(term, terms), strides));
  }
};

/// What is summed: function(big), or function(big, inner(left, right)).
struct Terms {
  std::vector<Operand> operands;
  Operator function;
  Operator inner;

  double get(const Shape& sum, int term) const {
    const double first = operands[0].get(sum, term);
    if (!inner) return function(&first);
    const double others[] = {operands[1].get(sum, term), operands[2].get(sum, term)};
    const double both[] = {first, inner(others)};
    return function(both);
  }
};

/// Many terms: reduce_kernel<reducer, dimensions, sum's type, type of big, of small, function,
///     unrolled>(sums, terms, add, big, small, shape of big, of small, of terms, their strides,
///     parts of the terms, transposed)
/// or with three arrays: reduce_kernel<reducer, dimensions, type, function, inner, unrolled>(
///     sums, terms, add, big, left, right, small, shapes of the three, shape of small, shapes of
///     terms in the three, their strides, parts, transposed)
/// One term: reduce_kernel_M1, the same without `unrolled`, `terms`, shapes and strides of terms,
/// and parts.
Task reduce(const Launch& launch, bool many) {
  const auto& types = launch.name.arguments;
  const int dimensions = std::stoi(types[1].head);
  const bool three = types.size() == (many ? 6 : 5);
  const std::size_t arrays = three ? 3 : 1;
  Terms of;
  of.function = find_operator(types[three ? 3 : 5]);
  if (three) of.inner = find_operator(types[4]);
  if (!of.function || (three && !of.inner)) return {};

  std::size_t next = 0;
  const auto sums = launch.argument<int>(next++);
  const int terms = many ? launch.argument<int>(next++) : 1;
  const int request = launch.argument<bool>(next++) ? kAddTo : 1;
  const Name big = pointer_to(types[three ? 2 : 3]);
  for (std::size_t i = 0; i < arrays; ++i) {
    of.operands.push_back({Values(big, launch.arguments[next++]), {}});
  }
  const Values small(pointer_to(types[three ? 2 : 4]), launch.arguments[next++]);
  const auto shape = [&] { return shape_of(launch.arguments[next++], dimensions); };
  for (Operand& each : of.operands) each.whole = shape();
  const Shape small_shape = shape();
  if (many) {
    for (Operand& each : of.operands) each.terms = shape();
    for (Operand& each : of.operands) each.strides = shape();
  }
  const auto parts = many ? launch.argument<int>(next++) : 1;
  return [=] {
    for (int part = 0; part < parts; ++part) {
      const auto begin = static_cast<int>(std::int64_t(terms) * part / parts);
      const auto end = static_cast<int>(std::int64_t(terms) * (part + 1) / parts);
      for (int i = 0; i < sums; ++i) {
        const Shape at = unravel(i, small_shape);
        double sum = 0;
        for (int k = begin; k < end; ++k) sum += of.get(at, k);
        small.write(std::int64_t(part) * sums + i, request, sum);
      }
    }
  };
}

/// reduce_lines_kernel<reducer, type>(sums, parts, add, stride, in, out): what comes after several
/// parts
Task reduce_parts(const Launch& launch) {
  const auto sums = launch.argument<int>(0);
  const auto parts = launch.argument<int>(1);
  const int request = launch.argument<bool>(2) ? kAddTo : 1;
  const auto stride = launch.argument<int>(3);
  const Name type = pointer_to(launch.name.arguments[1]);
  const Values in(type, launch.arguments[4]);
  const Values out(type, launch.arguments[5]);
  return [=] {
    for (int i = 0; i < sums; ++i) {
      double sum = 0;
      for (int k = 0; k < parts; ++k) sum += in.get(i + std::int64_t(k) * stride);
      out.write(i, request, sum);
    }
  };
}

}  // namespace

Task reduction(const Launch& launch) {
  const std::string& kernel = launch.name.head;
  if (launch.name.arguments.empty() || launch.name.arguments[0].head != "sum") return {};
  if (kernel == "reduce_lines_kernel") return reduce_parts(launch);
  const bool many = kernel == "reduce_kernel";
  return many || kernel == "reduce_kernel_M1" ? reduce(launch, many) : Task();
}

}  // namespace fake_cuda

// Expressions of mshadow: MapPlanKernel<saveto, bits, plan of an array, plan of the expression>(
//     array, stride, shape, expression), where that is a scalar, an array of any type, or the sum
// of several arrays.

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/forms.h"

namespace fake_cuda {
namespace {

/// An array as it lies in a plan: its address, and the elements from row to row if it has more than
/// one axis. A scalar is itself, in every place.
struct Rows {
  Values values;
  std::int32_t stride = 0;

  std::int64_t index(int y, int x) const { return std::int64_t(y) * stride + x; }
};

/// Appends the arrays whose sum the expression is, of which `*memory` is the plan.
bool append(const Name& expression, const char** memory, std::vector<Rows>* terms) {
  const auto& arguments = expression.arguments;
  if (expression.head == "ScalarExp") {
    terms->push_back({Values(arguments[0], *memory)});
    return true;
  }
  if (expression.head == "TypecastExp") return append(arguments[2], memory, terms);
  if (expression.head == "BinaryMapExp" && arguments[0].head == "plus") {
    return append(arguments[1], memory, terms) && append(arguments[2], memory, terms);
  }
  if (expression.head != "Tensor") return false;
  Rows rows{Values({arguments[2].head + "*", {}}, *memory)};
  *memory += sizeof(void*);
  if (arguments[1].head != "1") {
    std::memcpy(&rows.stride, *memory, sizeof rows.stride);
    *memory += sizeof(void*);
  }
  terms->push_back(rows);
  return true;
}

}  // namespace

Task expression(const Launch& launch) {
  if (launch.name.head != "MapPlanKernel" || launch.name.arguments[0].head != "saveto") return {};
  std::vector<Rows> out, terms;
  const char* to = static_cast<const char*>(launch.arguments[0]);
  const char* from = static_cast<const char*>(launch.arguments[3]);
  if (!append(launch.name.arguments[2].arguments[0], &to, &out)) return {};
  if (!append(launch.name.arguments[3].arguments[0], &from, &terms)) return {};
  struct Shape {
    std::int32_t height, width;
  };
  return [=, out = out.front(), shape = launch.argument<Shape>(2)] {
    for (int y = 0; y < shape.height; ++y) {
      for (int x = 0; x < shape.width; ++x) {
        double sum = -0.0;  // to which anything can be added without a change
        for (const Rows& term : terms) sum += term.values.get(term.index(y, x));
        out.values.set(out.index(y, x), sum);
      }
    }
  };
}

}  // namespace fake_cuda

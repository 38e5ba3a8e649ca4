// Expressions of mshadow: MapPlanKernel<saveto, bits, plan of an array, plan of the expression>(
//     array, stride, shape, expression), where that is a scalar, an array of any type, or the sum
// of several arrays. Strides and shapes are of 4 or 8 bytes, as the package was built.

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
  std::int64_t stride = 0;

  std::int64_t index(std::int64_t y, std::int64_t x) const { return y * stride + x; }
};

/// A number of 4 or of 8 bytes.
std::int64_t number(const void* from, bool is_long) {
  std::int32_t few = 0;
  std::int64_t many = 0;
  if (is_long) {
    std::memcpy(&many, from, sizeof many);
  } else {
    std::memcpy(&few, from, sizeof few);
  }
  return is_long ? many : few;
}

/// Appends the arrays whose sum the expression is, of which `*memory` is the plan.
bool append(const Name& expression, bool is_long, const char** memory, std::vector<Rows>* terms) {
  const auto& arguments = expression.arguments;
  if (expression.head == "ScalarExp") {
    terms->push_back({Values(arguments[0], *memory)});
    return true;
  }
  if (expression.head == "TypecastExp") return append(arguments[2], is_long, memory, terms);
  if (expression.head == "BinaryMapExp" && arguments[0].head == "plus") {
    return append(arguments[1], is_long, memory, terms) &&
           append(arguments[2], is_long, memory, terms);
  }
  if (expression.head != "Tensor") return false;
  Rows rows{Values({arguments[2].head + "*", {}}, *memory)};
  *memory += sizeof(void*);
  if (arguments[1].head != "1") {
    rows.stride = number(*memory, is_long);
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
  const bool is_long = launch.name.parameters[1].head == "long";
  if (!append(launch.name.arguments[2].arguments[0], is_long, &to, &out)) return {};
  if (!append(launch.name.arguments[3].arguments[0], is_long, &from, &terms)) return {};
  const auto* const shape = static_cast<const char*>(launch.arguments[2]);
  const std::int64_t height = number(shape, is_long);
  const std::int64_t width = number(shape + (is_long ? 8 : 4), is_long);
  return [=, out = out.front()] {
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) {
        double sum = -0.0;  // to which anything can be added without a change
        for (const Rows& term : terms) sum += term.values.get(term.index(y, x));
        out.values.set(out.index(y, x), sum);
      }
    }
  };
}

}  // namespace fake_cuda

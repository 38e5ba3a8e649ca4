// Expressions of mshadow: MapPlanKernel<saver, bits, plan of the output, plan of the expression>(
//     output, stride, shape, expression), and the same for large arrays.

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>

#include "kernels/forms.h"
#include "kernels/shapes.h"

namespace fake_cuda {
namespace {

/// A plan as it lies in memory, and what it is the plan of.
struct Plan {
  std::size_t bytes = 0;
  std::size_t alignment = 1;
  std::function<double(int y, int x)> at;
};

std::size_t aligned(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// Rows of an array, or of a slice of one: its address, and the elements from row to row if it has
/// more than one.
struct Rows {
  Values values;
  std::int64_t stride = 0;
  std::size_t bytes;
  // In a slice: rows of each of the lengths that are cut, where the cut begins, their number before
  // the cut and after it; and the same for an axis within rows.
  std::int64_t height = 1, first = 0, before = 1, after = 1, first_column = 0;

  static bool can_be(const Name& expression) {
    return expression.head == "Tensor" ||
           (expression.head == "SliceExp" && expression.arguments[0].head == "Tensor");
  }

  Rows(const Name& expression, const char* memory)
      : values({tensor_of(expression).arguments[2].head + "*", {}}, memory) {
    const bool is_row = tensor_of(expression).arguments[1].head == "1";
    bytes = is_row ? 8 : 16;
    if (!is_row) stride = integer(memory + sizeof(void*));
    if (expression.head != "SliceExp") return;
    if (expression.arguments[4].head == "1") {
      first_column = integer(memory + bytes);
      bytes += 8;
    } else {
      height = integer(memory + bytes);
      first = integer(memory + bytes + 4);
      before = integer(memory + bytes + 8);
      after = integer(memory + bytes + 12);
      bytes += 16;
    }
  }
  std::int64_t index(int y, int x) const {
    const std::int64_t cut = y / height;
    const std::int64_t row = (cut / after * before + cut % after + first) * height + y % height;
    return row * stride + x + first_column;
  }

 private:
  static const Name& tensor_of(const Name& expression) {
    return expression.head == "SliceExp" ? expression.arguments[0] : expression;
  }
  static std::int64_t integer(const char* memory) {
    std::int32_t value = 0;
    std::memcpy(&value, memory, sizeof value);
    return value;
  }
};

std::optional<Plan> plan_of(const Name& expression, const char* memory) {
  const auto& arguments = expression.arguments;
  if (Rows::can_be(expression)) {
    const Rows rows(expression, memory);
    return Plan{rows.bytes, 8, [rows](int y, int x) { return rows.values.get(rows.index(y, x)); }};
  }
  if (expression.head == "ScalarExp") {
    const Values scalar(arguments[0], memory);
    return Plan{scalar.bytes(), scalar.bytes(), [scalar](int, int) { return scalar.get(0); }};
  }
  if (expression.head == "TypecastExp") return plan_of(arguments[2], memory);
  if (expression.head == "UnaryMapExp") {
    const Operator function = find_operator(arguments[0]);
    const auto of = plan_of(arguments[1], memory);
    if (!function || !of) return {};
    return Plan{of->bytes, of->alignment, [function, at = of->at](int y, int x) {
                  const double value = at(y, x);
                  return function(&value);
                }};
  }
  if (expression.head == "BinaryMapExp") {
    const Operator function = find_operator(arguments[0]);
    const auto left = plan_of(arguments[1], memory);
    // Where the right plan begins depends on its alignment, which does not depend on its memory.
    const auto probe = plan_of(arguments[2], memory);
    if (!function || !left || !probe) return {};
    const std::size_t begin = aligned(left->bytes, probe->alignment);
    const auto right = plan_of(arguments[2], memory + begin);
    const std::size_t alignment = std::max(left->alignment, right->alignment);
    return Plan{aligned(begin + right->bytes, alignment), alignment,
                [function, l = left->at, r = right->at](int y, int x) {
                  const double values[] = {l(y, x), r(y, x)};
                  return function(values);
                }};
  }
  return {};
}

/// From what is there and what comes to what is stored.
Operator saver(const std::string& name) {
  static const std::map<std::string, std::string> operators = {{"saveto", "right"},
                                                               {"plusto", "plus"},
                                                               {"minusto", "minus"},
                                                               {"multo", "mul"},
                                                               {"divto", "div"}};
  const auto found = operators.find(name);
  return found == operators.end() ? Operator() : find_operator({found->second, {}});
}

}  // namespace

Task expression(const Launch& launch) {
  const bool large = launch.name.head == "MapPlanLargeKernel";
  if (!large && launch.name.head != "MapPlanKernel") return {};
  const auto& arguments = launch.name.arguments;
  const Name& to = arguments[large ? 3 : 2].arguments[0];
  const Name& from = arguments[large ? 4 : 3].arguments[0];
  const Operator save = saver(arguments[0].head);
  if (!save || !Rows::can_be(to)) return {};
  const auto plan = plan_of(from, static_cast<const char*>(launch.arguments[3]));
  if (!plan) return {};
  const Rows out(to, static_cast<const char*>(launch.arguments[0]));
  const Shape shape = shape_of(launch.arguments[2], 2);
  return [=, at = plan->at] {
    for (int y = 0; y < shape[0]; ++y) {
      for (int x = 0; x < shape[1]; ++x) {
        const std::int64_t i = out.index(y, x);
        const double values[] = {out.values.get(i), at(y, x)};
        out.values.set(i, save(values));
      }
    }
  };
}

}  // namespace fake_cuda

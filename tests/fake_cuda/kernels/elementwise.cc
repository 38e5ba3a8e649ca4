// Kernels that MXNet launches with Kernel<OP, gpu>::Launch, for every element by itself.

#include <string>
#include <vector>

#include "die.h"
#include "kernels/forms.h"

namespace fake_cuda {
namespace {

constexpr std::size_t kMostInputs = 8;

/// Arguments from `first` on, whose types follow the operator in the kernel's name.
std::vector<Values> values(const Launch& launch, std::size_t first) {
  std::vector<Values> all;
  for (std::size_t i = first; i < launch.name.arguments.size(); ++i) {
    all.emplace_back(launch.name.arguments[i], launch.arguments[i]);
  }
  return all;
}

/// Pairs of float16 are two elements each.
int number_of_elements(const Launch& launch) {
  const bool pairs = launch.name.arguments[1].element() == "half2_t";
  return launch.argument<int>(0) * (pairs ? 2 : 1);
}

Task map(const Launch& launch, const Operator& function, int request) {
  const int size = number_of_elements(launch);
  const Values out(launch.name.arguments[1], launch.arguments[1]);
  const std::vector<Values> in = values(launch, 2);
  if (in.size() > kMostInputs) die("an elementwise kernel with too many inputs");
  return [=] {
    double x[kMostInputs];
    for (int i = 0; i < size; ++i) {
      for (std::size_t k = 0; k < in.size(); ++k) x[k] = in[k].get(i);
      out.write(i, request, function(x));
    }
  };
}

/// Sum(out, request, inputs...)
Task sum(const Launch& launch) {
  const int size = number_of_elements(launch);
  const Values out(launch.name.arguments[1], launch.arguments[1]);
  const auto request = launch.argument<int>(2);
  const std::vector<Values> in = values(launch, 3);
  return [=] {
    for (int i = 0; i < size; ++i) {
      double total = 0;
      for (const Values& each : in) total += each.get(i);
      out.write(i, request, total);
    }
  };
}

}  // namespace

Task elementwise(const Launch& launch) {
  if (launch.name.head != "mxnet_generic_kernel") return {};
  const Name& op = launch.name.arguments.front();
  if (op.head == "Sum") return sum(launch);
  if (op.head == "op_with_req") {
    const Operator function = find_operator(op.arguments[0]);
    return function ? map(launch, function, std::stoi(op.arguments[1].head)) : Task();
  }
  constexpr int kWriteTo = 1;
  if (op.head == "identity_with_cast") {
    return map(launch, find_operator({"identity", {}}), kWriteTo);
  }
  if (const Operator function = find_operator(op)) return map(launch, function, kWriteTo);
  return {};
}

}  // namespace fake_cuda

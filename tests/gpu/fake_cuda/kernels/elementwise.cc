// Kernels that MXNet launches with Kernel<OP, gpu>::Launch, for every element by itself:
// mxnet_generic_kernel<OP, types...>(number of elements, arguments...).

#include <string>
#include <vector>

#include "kernels/forms.h"

namespace fake_cuda {
namespace {

constexpr int kWriteTo = 1;

/// Arguments from `first` on, whose types follow the operator in the kernel's name.
std::vector<Values> values(const Launch& launch, std::size_t first) {
  std::vector<Values> all;
  for (std::size_t i = first; i < launch.name.arguments.size(); ++i) {
    all.emplace_back(launch.name.arguments[i], launch.arguments[i]);
  }
  return all;
}

/// (out, inputs...) or (out, request, inputs...): what `function` makes of one element of each.
template <class Function>
Task map(const Launch& launch, const Function& function, int request, std::size_t first) {
  const Name& type = launch.name.arguments[1];
  // Pairs of float16 are two elements each.
  const int size = launch.argument<int>(0) * (type.element() == "half2_t" ? 2 : 1);
  return [=, out = Values(type, launch.arguments[1]), in = values(launch, first)] {
    std::vector<double> x(in.size());
    for (int i = 0; i < size; ++i) {
      for (std::size_t k = 0; k < in.size(); ++k) x[k] = in[k].get(i);
      out.write(i, request, function(x));
    }
  };
}

Task map(const Launch& launch, const Operator& function, int request) {
  if (!function) return {};
  return map(launch, [=](const std::vector<double>& x) { return function(x.data()); }, request, 2);
}

double sum(const std::vector<double>& x) {
  double total = 0;
  for (const double each : x) total += each;
  return total;
}

}  // namespace

Task elementwise(const Launch& launch) {
  if (launch.name.head != "mxnet_generic_kernel") return {};
  const Name& op = launch.name.arguments.front();
  if (op.head == "Sum") return map(launch, sum, launch.argument<int>(2), 3);
  if (op.head == "op_with_req") {
    return map(launch, find_operator(op.arguments[0]), std::stoi(op.arguments[1].head));
  }
  if (op.head == "identity_with_cast")
    return map(launch, find_operator({"identity", {}}), kWriteTo);
  return map(launch, find_operator(op), kWriteTo);
}

}  // namespace fake_cuda

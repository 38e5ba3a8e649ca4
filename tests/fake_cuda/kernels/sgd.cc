// The optimizer SGD, by the formula in src/operator/optimizer_op-inl.h of MXNet, without clipping.

#include <cstddef>
#include <string>

#include "kernels/forms.h"

namespace fake_cuda {
namespace {

/// The argument of MultiSGDKernel, as it lies in memory.
template <class T>
struct Weights {
  static constexpr int kMost = 60;
  int count;
  std::size_t max_size;
  std::size_t sizes[kMost];
  T* weights[kMost];
  T* gradients[kMost];
  T* momenta[kMost];
  T* unused[kMost];
  T* outs[kMost];
  T rates[kMost];
  T decays[kMost];
  T clip;
  T rescale;
  T momentum;
};

template <class T>
Task update(const Launch& launch, bool has_momentum) {
  return [has_momentum, of = launch.argument<Weights<T>>(1)] {
    for (int k = 0; k < of.count; ++k) {
      for (std::size_t i = 0; i < of.sizes[k]; ++i) {
        const T weight = of.weights[k][i];
        const T gradient = of.rescale * of.gradients[k][i] + of.decays[k] * weight;
        T change = -of.rates[k] * gradient;
        if (has_momentum) change = of.momenta[k][i] = of.momentum * of.momenta[k][i] + change;
        of.outs[k][i] = weight + change;
      }
    }
  };
}

}  // namespace

/// mxnet_generic_kernel<MultiSGDKernel<type, has momentum, has a master copy>, types...>(
///     largest size, weights, request)
Task sgd(const Launch& launch) {
  if (launch.name.head != "mxnet_generic_kernel") return {};
  const Name& op = launch.name.arguments[0];
  if (op.head != "MultiSGDKernel" || op.arguments[2].head == "true") return {};
  const bool has_momentum = op.arguments[1].head == "true";
  if (op.arguments[0].head == "float") return update<float>(launch, has_momentum);
  return op.arguments[0].head == "double" ? update<double>(launch, has_momentum) : Task();
}

}  // namespace fake_cuda

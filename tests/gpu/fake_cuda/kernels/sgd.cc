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

/// mxnet_generic_kernel<SGDMomKernel, types...>(size, out, momenta, weights, gradients, clip,
/// momentum,
///     rate, decay, scale, request)
template <class T>
Task update_one(const Launch& launch) {
  return
      [size = launch.argument<int>(0), out = launch.argument<T*>(1),
       momenta = launch.argument<T*>(2), weights = launch.argument<T*>(3),
       gradients = launch.argument<T*>(4), momentum = launch.argument<T>(6),
       rate = launch.argument<T>(7), decay = launch.argument<T>(8), scale = launch.argument<T>(9)] {
        for (int i = 0; i < size; ++i) {
          const T gradient = scale * gradients[i] + decay * weights[i];
          momenta[i] = momentum * momenta[i] - rate * gradient;
          out[i] = weights[i] + momenta[i];
        }
      };
}

}  // namespace

/// mxnet_generic_kernel<MultiSGDKernel<type, has momentum, has a master copy>, types...>(
///     largest size, weights, request)
Task sgd(const Launch& launch) {
  if (launch.name.head != "mxnet_generic_kernel") return {};
  const Name& op = launch.name.arguments[0];
  if (op.head == "SGDMomKernel") {
    const std::string type = launch.name.arguments[1].element();
    if (type == "float") return update_one<float>(launch);
    return type == "double" ? update_one<double>(launch) : Task();
  }
  if (op.head != "MultiSGDKernel" || op.arguments[2].head == "true") return {};
  const bool has_momentum = op.arguments[1].head == "true";
  if (op.arguments[0].head == "float") return update<float>(launch, has_momentum);
  return op.arguments[0].head == "double" ? update<double>(launch, has_momentum) : Task();
}

}  // namespace fake_cuda

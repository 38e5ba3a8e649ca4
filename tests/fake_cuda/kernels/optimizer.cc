// MXNet's optimizers, by the formulas in src/operator/optimizer_op-inl.h, and what asks whether
// gradients overflowed.

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "common/half.h"
#include "kernels/forms.h"

namespace fake_cuda {
namespace {

double clip(double value, double limit) {
  return limit >= 0 ? std::min(std::max(value, -limit), limit) : value;
}

/// Arguments behind the number of elements: arrays first, then scalars, then the request.
std::vector<Values> all_but_request(const Launch& launch) {
  std::vector<Values> all;
  for (std::size_t i = 1; i + 1 < launch.name.arguments.size(); ++i) {
    all.emplace_back(launch.name.arguments[i], launch.arguments[i]);
  }
  return all;
}

struct Step {
  int size;
  int request;
  std::vector<Values> of;

  explicit Step(const Launch& launch)
      : size(launch.argument<int>(0)),
        request(launch.argument<int>(launch.name.arguments.size() - 1)),
        of(all_but_request(launch)) {}
};

/// (out, weight, gradient, clip, rate, decay, rescale)
Task sgd(const Launch& launch) {
  return [s = Step(launch)] {
    const auto& of = s.of;
    for (int i = 0; i < s.size; ++i) {
      const double gradient = clip(of[6].get(0) * of[2].get(i), of[3].get(0));
      const double rate = of[4].get(0);
      s.of[0].write(i, s.request, (1 - rate * of[5].get(0)) * of[1].get(i) - rate * gradient);
    }
  };
}

/// (out, momentum, weight, gradient, clip, factor, rate, decay, rescale)
Task sgd_momentum(const Launch& launch) {
  return [s = Step(launch)] {
    const auto& of = s.of;
    for (int i = 0; i < s.size; ++i) {
      const double weight = of[2].get(i);
      const double gradient = clip(of[8].get(0) * of[3].get(i), of[4].get(0));
      const double rate = of[6].get(0);
      of[1].set(i, of[5].get(0) * of[1].get(i) - rate * of[7].get(0) * weight - rate * gradient);
      of[0].write(i, s.request, weight + of[1].get(i));
    }
  };
}

/// (out, mean, variance, weight, gradient, clip, rescale, beta1, beta2, rate, decay, epsilon)
Task adam(const Launch& launch) {
  return [s = Step(launch)] {
    const auto& of = s.of;
    for (int i = 0; i < s.size; ++i) {
      const double weight = of[3].get(i);
      const double gradient =
          clip(of[4].get(i) * of[6].get(0) + weight * of[10].get(0), of[5].get(0));
      const double beta1 = of[7].get(0);
      const double beta2 = of[8].get(0);
      of[1].set(i, beta1 * of[1].get(i) + (1 - beta1) * gradient);
      of[2].set(i, beta2 * of[2].get(i) + (1 - beta2) * gradient * gradient);
      of[0].write(i, s.request,
                  weight - of[9].get(0) * of[1].get(i) / (std::sqrt(of[2].get(i)) + of[11].get(0)));
    }
  };
}

/// A float16 among the scalars of MultiSGDKernel.
struct HalfScalar {
  gluon_syncbn::Half value;
  operator double() const { return gluon_syncbn::to_float(value); }
};

/// The argument of MultiSGDKernel, as it lies in memory; Real is float, double or HalfScalar.
template <class Real>
struct ManyWeights {
  static constexpr int kMost = 60;
  int count;
  std::size_t max_size;
  std::size_t sizes[kMost];
  void* weights[kMost];
  void* gradients[kMost];
  void* momenta[kMost];
  void* master_weights[kMost];
  void* outs[kMost];
  Real rates[kMost];
  Real decays[kMost];
  Real clip;
  Real rescale;
  Real momentum;
};

template <class Real>
Task many_sgd(const Launch& launch) {
  const Name& op = launch.name.arguments[0];
  const bool has_momentum = op.arguments[1].head == "true";
  const bool has_master = op.arguments[2].head == "true";
  const Name real{op.arguments[0].head + "*", {}};
  const Name data{launch.name.arguments[1].arguments[0].head + "*", {}};
  const auto request = launch.argument<int>(2);
  return [=, of = launch.argument<ManyWeights<Real>>(1)] {
    for (int k = 0; k < of.count; ++k) {
      const Values weights(data, &of.weights[k]);
      const Values gradients(data, &of.gradients[k]);
      const Values momenta(real, &of.momenta[k]);
      const Values masters(real, &of.master_weights[k]);
      const Values outs(data, &of.outs[k]);
      for (std::size_t n = 0; n < of.sizes[k]; ++n) {
        const auto i = static_cast<std::int64_t>(n);
        const double weight = has_master ? masters.get(i) : weights.get(i);
        const double gradient = clip(of.rescale * gradients.get(i), of.clip);
        const double moved = (has_momentum ? of.momentum * momenta.get(i) : 0) -
                             of.rates[k] * of.decays[k] * weight - of.rates[k] * gradient;
        if (has_momentum) momenta.set(i, moved);
        if (has_master) masters.set(i, weight + moved);
        outs.write(i, request, weight + moved);
      }
    }
  };
}

/// The argument of MultiAllFiniteGPUKernel, as it lies in memory.
struct ManyArrays {
  static constexpr int kMost = 200;
  int count;
  std::size_t max_size;
  std::size_t sizes[kMost];
  void* arrays[kMost];
};

/// MultiAllFiniteGPUKernel<type>(arrays, out): 0 if a number is not finite, else what is there
Task all_finite(const Launch& launch) {
  const Name type{launch.name.arguments[0].head + "*", {}};
  const Values out({"float*", {}}, launch.arguments[1]);
  return [=, of = launch.argument<ManyArrays>(0)] {
    for (int k = 0; k < of.count; ++k) {
      const Values array(type, &of.arrays[k]);
      for (std::size_t i = 0; i < of.sizes[k]; ++i) {
        if (!std::isfinite(array.get(static_cast<std::int64_t>(i)))) out.set(0, 0);
      }
    }
  };
}

}  // namespace

Task optimizer(const Launch& launch) {
  if (launch.name.head == "MultiAllFiniteGPUKernel") return all_finite(launch);
  if (launch.name.head != "mxnet_generic_kernel") return {};
  const Name& op = launch.name.arguments[0];
  if (op.head == "SGDKernel") return sgd(launch);
  if (op.head == "SGDMomKernel") return sgd_momentum(launch);
  if (op.head == "AdamUpdateKernel") return adam(launch);
  if (op.head != "MultiSGDKernel") return {};
  if (op.arguments[0].head == "float") return many_sgd<float>(launch);
  if (op.arguments[0].head == "double") return many_sgd<double>(launch);
  if (op.arguments[0].head == "half_t") return many_sgd<HalfScalar>(launch);
  return {};
}

}  // namespace fake_cuda

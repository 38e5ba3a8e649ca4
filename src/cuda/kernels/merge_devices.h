#pragma once

#include <cstdint>

#include "cuda/kernels/body.h"
#include "cuda/kernels/messages.h"
#include "cuda/kernels/numbers.h"
#include "norm/invertible.h"
#include "norm/merge_weight.h"
#include "norm/per_channel.h"

// The work of PerChannel: a thread merges the messages of all devices for one channel. It also
// stores the numbers for the outputs (sources.h), and statistics or parameter gradients.

namespace gluon_syncbn::cuda {

/// Merges the messages by the formulas of norm/merge_weight.h, or takes the running statistics.
/// Then computes the normalizations.
template <class R>
struct ForwardMerge {
  static constexpr const char* kName = "merge of moments";

  Messages messages;  // empty: the kernel takes the running statistics
  const R* running_mean;
  const R* running_variance;
  std::int64_t channels;
  double eps;
  RunningAverages<R> averages;
  const R* gamma;  // null: 1
  const R* beta;
  // Written, one number or three per channel.
  double* mean;
  double* inv_std;
  StoredAffine<R>* normalizations;

  void compute(std::int64_t c) const {
    double center = 0;
    double m2 = 0;
    messages.for_each(channels, c, [&](const MergeWeight& weight, double own_mean, double own_m2) {
      if (weight.of_merged > 0) weight.merge(own_mean, own_m2, &center, &m2);
    });
    double variance = messages.count > 0 ? m2 / static_cast<double>(messages.count) : 0;
    if (messages.size == 0) {
      center = static_cast<double>(running_mean[c]);
      variance = static_cast<double>(running_variance[c]);
    }
    const double deviation = inv_std_of(variance, eps);
    const double scale = scale_of(gamma, c, deviation);
    const double shift = shift_of<R>(center, scale, static_cast<double>(beta[c]));
    // All loads come before the stores, so that they overlap.
    averages.move(c, center, variance);
    mean[c] = center;
    inv_std[c] = deviation;
    // One by one, because NVRTC 11 copies an aggregate with a base byte by byte.
    StoredAffine<R>& stored = normalizations[c];
    stored.mean = static_cast<R>(center);
    stored.scale = static_cast<R>(scale);
    stored.shift = static_cast<R>(shift);
  }
};

/// Finds the first channel whose input is not recoverable from its output.
struct InvertibleCheck {
  Invertible invertible;
  std::uint32_t* first;  // in host memory, which the host sets to ~0u before; null: no check

  void look(std::int64_t c, double gamma, double beta) const {
    if (!first || invertible.holds(gamma, beta)) return;
    const auto channel = static_cast<std::uint32_t>(c);
#ifdef __CUDA_ARCH__
    atomicMin(first, channel);
#else  // The tests run this branch on the CPU.
    std::uint32_t before = __atomic_load_n(first, __ATOMIC_RELAXED);
    while (channel < before && !__atomic_compare_exchange_n(first, &before, channel, false,
                                                            __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
#endif
  }
};

/// Merges the sums of all devices into the factors of dx, and writes the gradients of gamma and
/// beta from the sums of this device.
template <class R>
struct BackwardMerge {
  static constexpr const char* kName = "merge of gradient sums";

  Messages messages;  // empty if forward used the running statistics, which do not depend on x
  const double* own;  // message of this device
  std::int64_t channels;
  const double* mean;
  const double* inv_std;
  const R* gamma;  // null: 1
  const R* beta;   // given only in place
  double count;    // elements per channel on all devices
  bool gamma_gradient_is_zero;
  ParameterGradient<R> gamma_gradient;
  ParameterGradient<R> beta_gradient;
  InvertibleCheck check;
  Gradient<R>* gradients;  // written

  void compute(std::int64_t c) const {
    double first = 0;
    double second = 0;
    messages.for_each(channels, c, [&](const MergeWeight&, double own_first, double own_second) {
      first += own_first;
      second += own_second;
    });
    const double gamma_sum = gamma_gradient_is_zero ? 0.0 : own[channels + c] * inv_std[c];
    const double beta_sum = own[c];
    const double scale = scale_of(gamma, c, inv_std[c]);
    double center = mean[c];
    InputGradientFactors factors{};
    if (messages.size > 0) {
      factors = InputGradientFactors::of(first, second, count, scale, inv_std[c]);
    }
    if (beta) {
      // In place the kernel knows z instead of x, so `center` and `x_factor` apply to z.
      center = static_cast<double>(beta[c]);
      check.look(c, static_cast<double>(gamma_of(gamma, c)), center);
      if (messages.size > 0) factors.x_factor /= scale;
    } else {
      factors.constant = factors.constant_for<R>(center);
    }
    // All loads come before the stores, so that they overlap.
    gamma_gradient.put(c, gamma_sum);
    beta_gradient.put(c, beta_sum);
    gradients[c] = {static_cast<R>(center), static_cast<R>(scale), static_cast<R>(factors.x_factor),
                    static_cast<R>(factors.constant)};
  }
};

/// Adds 1 to the number of batches. This is a kernel of its own, because all threads of
/// ForwardMerge must read the number first.
template <class R>
struct CountBatch {
  static constexpr const char* kName = "number of batches";

  RunningAverages<R> averages;

  void compute(std::int64_t) const { averages.count_batch(); }
};

}  // namespace gluon_syncbn::cuda

#pragma once

#include <cstdint>

#include "cuda/kernels/body.h"
#include "cuda/kernels/messages.h"
#include "norm/coefficients.h"
#include "norm/invertible.h"
#include "norm/merge_weight.h"
#include "norm/per_channel.h"

// The work of PerChannel: a thread merges the messages of all devices for one channel. It also
// stores the coefficients for the outputs (sources.h), and statistics or parameter gradients.

namespace gluon_syncbn::cuda {

// The host leases memory for them, which NVRTC's kernels write.
static_assert(sizeof(Affine<float>) == 16 && sizeof(Affine<double>) == 32);

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
  Affine<R>* normalizations;

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
    const auto normalization = Affine<R>::of(
        center, deviation, static_cast<double>(gamma_of(gamma, c)), static_cast<double>(beta[c]));
    // All loads come before the stores, so that they overlap.
    averages.move(c, center, variance);
    mean[c] = center;
    inv_std[c] = deviation;
    normalizations[c] = normalization;
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

/// Merges the sums of all devices into the coefficients of dx, and writes the gradients of gamma
/// and beta from the sums of this device.
template <class R>
struct BackwardMerge {
  static constexpr const char* kName = "merge of gradient sums";

  Messages messages;  // empty if forward used the running statistics, which do not depend on x
  const double* own;  // message of this device
  std::int64_t channels;
  ChannelParameters<R> parameters;
  bool inplace;
  double count;  // elements per channel on all devices; 0 if `messages` is empty
  ParameterGradients<R> parameter_gradients;
  InvertibleCheck check;
  Gradient<R>* gradients;  // written

  void compute(std::int64_t c) const {
    double first = 0;
    double second = 0;
    messages.for_each(channels, c, [&](const MergeWeight&, double own_first, double own_second) {
      first += own_first;
      second += own_second;
    });
    if (inplace) {
      check.look(c, static_cast<double>(gamma_of(parameters.gamma, c)),
                 static_cast<double>(parameters.beta[c]));
    }
    const double own_dz = own[c];
    const double own_dz_centered = own[channels + c];
    const auto gradient = Gradient<R>::of(parameters, c, first, second, count, inplace);
    // All loads come before the stores, so that they overlap.
    parameter_gradients.put(c, own_dz, own_dz_centered, parameters.inv_std[c]);
    gradients[c] = gradient;
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

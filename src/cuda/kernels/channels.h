#ifndef GLUON_SYNCBN_CUDA_KERNELS_CHANNELS_H_
#define GLUON_SYNCBN_CUDA_KERNELS_CHANNELS_H_

#include <cmath>
#include <cstdint>

#include "cuda/kernels/body.h"
#include "cuda/kernels/numbers.h"
#include "cuda/kernels/tiling.h"
#include "norm/invertible.h"
#include "norm/moments.h"
#include "norm/moving_average.h"

// The second kernel of a direction: one thread per channel merges the messages of all devices. It
// leaves the numbers that the outputs need, and writes statistics or the gradients of parameters.

namespace gluon_syncbn::cuda {

/// The messages of all devices, in the order of devices.
constexpr int kMostDevices = 64;

struct Messages {
  const double* values[kMostDevices];
  MergeWeight weights[kMostDevices];  // of moments; 0 for a device without elements
  std::int64_t count;                 // elements per channel of all devices
  int size;

  void add(const double* of_device, std::int64_t own_count) {
    values[size] = of_device;
    weights[size++] = own_count > 0 ? MergeWeight::of(count, own_count) : MergeWeight{};
    count += own_count;
  }

  /// Calls visit(weight, first, second) with the numbers of a channel, in the order of devices. The
  /// loads of several devices overlap.
  template <class Visit>
  GLUON_SYNCBN_HOST_DEVICE void for_each(std::int64_t channels, std::int64_t c,
                                         const Visit& visit) const {
    constexpr int kAtOnce = 8;
    for (int begin = 0; begin < size; begin += kAtOnce) {
      double first[kAtOnce];
      double second[kAtOnce];
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i >= size) continue;
        first[i] = values[begin + i][c];
        second[i] = values[begin + i][channels + c];
      }
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i < size) visit(weights[begin + i], first[i], second[i]);
      }
    }
  }
};

/// Statistics of the channels.
struct StatisticsArrays {
  double* mean;
  double* variance;
  double* inv_std;
};

/// Moves running statistics towards those of a batch. R is the type of parameters.
template <class R>
struct Averages {
  R* mean;  // null: the running statistics stay
  R* variance;
  double momentum;
  R* num_batches;  // of the average over all batches so far; null: `momentum`

  /// The batch has `count` elements per channel.
  GLUON_SYNCBN_HOST_DEVICE void move(std::int64_t c, double batch_mean, double batch_variance,
                                     std::int64_t count) const {
    if (!mean) return;
    const double weight =
        num_batches ? momentum_of_average(static_cast<double>(*num_batches) + 1.0) : momentum;
    move_averages(weight, batch_mean, batch_variance, count, &mean[c], &variance[c]);
  }
};

/// Computes the statistics of the batch, merged as on the CPU, or takes the running statistics.
/// Then computes the normalizations.
template <class R>
struct ForwardSource {
  static constexpr const char* kName = "merge of moments";

  Messages messages;  // none: the running statistics
  const R* running_mean;
  const R* running_variance;
  std::int64_t channels;
  double eps;
  StatisticsArrays statistics;
  Averages<R> averages;
  const R* gamma;  // null: 1
  const R* beta;
  StoredAffine<R>* normalizations;  // written

  GLUON_SYNCBN_HOST_DEVICE void compute(std::int64_t c) const {
    double mean = 0;
    double variance = 0;
    messages.for_each(channels, c, [&](const MergeWeight& weight, double own_mean, double own_m2) {
      if (weight.of_merged > 0) weight.merge(own_mean, own_m2, &mean, &variance);
    });
    if (messages.size > 0) {
      if (messages.count > 0) variance /= static_cast<double>(messages.count);
    } else {
      mean = static_cast<double>(running_mean[c]);
      variance = static_cast<double>(running_variance[c]);
    }
    const double inv_std = 1.0 / std::sqrt(variance + eps);
    statistics.mean[c] = mean;
    statistics.variance[c] = variance;
    statistics.inv_std[c] = inv_std;
    averages.move(c, mean, variance, messages.count);
    const double scale = (gamma ? static_cast<double>(gamma[c]) : 1.0) * inv_std;
    const double shift = static_cast<double>(beta[c]) - rest_of<R>(mean) * scale;
    normalizations[c] = {{static_cast<R>(mean), static_cast<R>(scale), static_cast<R>(shift)}};
  }
};

/// The gradient of a parameter.
template <class R>
struct ParameterGradient {
  R* values;  // null: not wanted
  bool add;

  GLUON_SYNCBN_HOST_DEVICE void put(std::int64_t c, double value) const {
    if (values) values[c] = static_cast<R>((add ? static_cast<double>(values[c]) : 0.0) + value);
  }
};

/// Finds the first channel whose input is not recoverable from its output.
struct InvertibleCheck {
  Invertible invertible;
  std::uint32_t* first;  // in memory of the host; null: no check

  GLUON_SYNCBN_HOST_DEVICE void look(std::int64_t c, double gamma, double beta) const {
    if (!first || invertible.holds(gamma, beta)) return;
    const auto channel = static_cast<std::uint32_t>(c);
#ifdef __CUDA_ARCH__
    atomicMin(first, channel);
#else
    std::uint32_t before = __atomic_load_n(first, __ATOMIC_RELAXED);
    while (channel < before && !__atomic_compare_exchange_n(first, &before, channel, false,
                                                            __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
#endif
  }
};

/// Merges the sums of all devices, and computes the factors of dx. The gradients of gamma and beta
/// come from the sums of this device alone.
template <class R>
struct BackwardSource {
  static constexpr const char* kName = "merge of gradient sums";

  Messages messages;  // none: statistics are constants
  const double* own;  // message of this device
  std::int64_t channels;
  const double* mean;
  const double* inv_std;
  const R* gamma;  // null: 1
  const R* beta;   // in place; otherwise null
  double count;    // elements per channel on all devices
  bool fix_gamma;
  ParameterGradient<R> gamma_gradient;
  ParameterGradient<R> beta_gradient;
  InvertibleCheck check;
  Gradient<R>* gradients;  // written

  GLUON_SYNCBN_HOST_DEVICE void compute(std::int64_t c) const {
    double first = 0;
    double second = 0;
    messages.for_each(channels, c, [&](const MergeWeight&, double own_first, double own_second) {
      first += own_first;
      second += own_second;
    });
    gamma_gradient.put(c, fix_gamma ? 0.0 : own[channels + c] * inv_std[c]);
    beta_gradient.put(c, own[c]);
    const double scale = gamma ? static_cast<double>(gamma[c]) : 1.0;
    const double dy_factor = scale * inv_std[c];
    double center = mean[c];
    double x_factor = 0;
    double constant = 0;
    if (beta) {  // in place: `center` and `x_factor` belong to z
      center = static_cast<double>(beta[c]);
      check.look(c, scale, center);
      if (messages.size > 0) {
        x_factor = -second * inv_std[c] * inv_std[c] / count;
        constant = -first * dy_factor / count;
      }
    } else if (messages.size > 0) {
      const double factor = dy_factor / count;
      x_factor = -factor * second * inv_std[c] * inv_std[c];
      constant = -factor * first - rest_of<R>(mean[c]) * x_factor;
    }
    gradients[c] = {static_cast<R>(center), static_cast<R>(dy_factor), static_cast<R>(x_factor),
                    static_cast<R>(constant)};
  }
};

/// Counts a batch, after all channels have read the number.
template <class R>
struct CountBatch {
  static constexpr const char* kName = "number of batches";

  R* num_batches;

  GLUON_SYNCBN_HOST_DEVICE void compute(std::int64_t) const { *num_batches += R(1); }
};

/// Reads numbers from the memory of another GPU, to check peer access.
struct ReadNumbers {
  static constexpr const char* kName = "check of peer access";

  const double* from;
  double* to;

  GLUON_SYNCBN_HOST_DEVICE void compute(std::int64_t i) const { to[i] = from[i]; }
};

/// The kernel that computes a source with one thread per channel.
template <class Source>
struct Channels {
  static constexpr const char* kName = Source::kName;

  Source source;
  std::int64_t size;

  struct Shared {};
  static constexpr int kSteps = 1;
  static constexpr int kResident = kResidentBlocks<double, false>;

  std::int64_t blocks() const { return (size + kThreads - 1) / kThreads; }

  GLUON_SYNCBN_HOST_DEVICE void step(int, std::uint32_t block, std::uint32_t thread,
                                     Shared*) const {
    const std::int64_t c = std::int64_t{block} * kThreads + thread;
    if (c < size) source.compute(c);
  }
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_KERNELS_CHANNELS_H_

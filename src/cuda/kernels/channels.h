#ifndef GLUON_SYNCBN_CUDA_KERNELS_CHANNELS_H_
#define GLUON_SYNCBN_CUDA_KERNELS_CHANNELS_H_

#include <cmath>
#include <cstdint>

#include "cuda/kernels/activations.h"
#include "cuda/kernels/between_blocks.h"
#include "cuda/kernels/body.h"
#include "cuda/kernels/numbers.h"
#include "cuda/kernels/tiling.h"
#include "norm/invertible.h"
#include "norm/moments.h"
#include "norm/moving_average.h"

// What is done once for every channel. Sources, which the kernels of outputs work from, have
//
//   kName, Values              for messages; what an output needs to know of a channel
//   OfChannels                 the source without what is done for elements
//   kIsActivated               whether an activation is part of that
//   kInputs, kOutputs          arrays that are read, and written
//   compute(c)                 once for each channel, by any thread
//   at(c)                      the Values, once that is done
//   outputs<N, kNumber>(values, elements, results)
//                              the outputs of N elements, of kNumber channels in turn

namespace gluon_syncbn::cuda {

/// The messages of all devices, in the order of devices: two numbers per channel of each, the
/// second behind the first of all channels.
constexpr int kMostDevices = 64;

struct Messages {
  const double* values[kMostDevices];
  MergeWeight weights[kMostDevices];  // of moments; 0 where there are no elements
  std::int64_t count;                 // elements per channel of all devices
  int size;

  void add(const double* of_device, std::int64_t own_count) {
    values[size] = of_device;
    weights[size++] = own_count > 0 ? MergeWeight::of(count, own_count) : MergeWeight{};
    count += own_count;
  }

  /// Calls visit(weight, first, second) with the numbers of a channel, in the order of devices. Of
  /// several devices these come over the same way, and together: none is waited for alone.
  template <class Visit>
  GLUON_SYNCBN_HOST_DEVICE void for_each(std::int64_t channels, std::int64_t c,
                                         const Visit& visit) const {
    constexpr int kAtOnce = 4;
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
  R* mean;  // null: they stay
  R* variance;
  double momentum;
  R* num_batches;          // not null: of the average over all batches so far
  std::uint32_t* counter;  // of the channels that have read the number
  std::int64_t channels;

  /// The batch has `count` elements per channel.
  GLUON_SYNCBN_HOST_DEVICE void move(std::int64_t c, double batch_mean, double batch_variance,
                                     std::int64_t count) const {
    if (!mean) return;
    double weight = momentum;
    if (num_batches) {
      const double batches = static_cast<double>(*num_batches) + 1.0;
      weight = momentum_of_average(batches);
      if (is_last_block(counter, static_cast<std::uint32_t>(channels)))
        *num_batches = static_cast<R>(batches);
    }
    move_averages(weight, batch_mean, batch_variance, count, &mean[c], &variance[c]);
  }
};

/// What `values` give for each of N elements.
template <int N, int kNumber, class Values, class R, int kInputs>
GLUON_SYNCBN_HOST_DEVICE void each_of(const Values* values, R (*elements)[kInputs], R* results) {
  GLUON_SYNCBN_UNROLL
  for (int i = 0; i < N; ++i) results[i] = values[i % kNumber].of(elements[i]);
}

/// y from x, and before that the statistics: those of the batch, merged from the moments of all
/// devices as on the CPU, or running ones.
template <class R>
struct ForwardSource {
  static constexpr const char* kName = "normalization";
  static constexpr bool kIsActivated = false;
  static constexpr int kInputs = 1;  // x
  static constexpr int kOutputs = 1;
  using Values = Affine<R>;
  using OfChannels = ForwardSource;

  Messages messages;  // none: statistics are running ones
  const R* running_mean;
  const R* running_variance;
  std::int64_t channels;
  double eps;
  StatisticsArrays statistics;
  Averages<R> averages;
  const R* gamma;  // null: 1
  const R* beta;

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
    statistics.mean[c] = mean;
    statistics.variance[c] = variance;
    statistics.inv_std[c] = 1.0 / std::sqrt(variance + eps);
    averages.move(c, mean, variance, messages.count);
  }

  GLUON_SYNCBN_HOST_DEVICE Affine<R> at(std::int64_t c) const {
    const double mean = load_cg(&statistics.mean[c]);
    const double scale =
        (gamma ? static_cast<double>(gamma[c]) : 1.0) * load_cg(&statistics.inv_std[c]);
    const double shift = static_cast<double>(beta[c]) - rest_of<R>(mean) * scale;
    return {static_cast<R>(mean), static_cast<R>(scale), static_cast<R>(shift)};
  }

  template <int N, int kNumber>
  GLUON_SYNCBN_HOST_DEVICE void outputs(const Values* values, R (*elements)[kInputs],
                                        R (*results)[N]) const {
    each_of<N, kNumber>(values, elements, results[0]);
  }
};

/// The same, which keeps the normalization of every channel for backward.
template <class R>
struct StoringSource : ForwardSource<R> {
  using Values = StoredAffine<R>;
  using OfChannels = StoringSource;

  StoredAffine<R>* normalizations;

  GLUON_SYNCBN_HOST_DEVICE void compute(std::int64_t c) const {
    ForwardSource<R>::compute(c);
    normalizations[c] = {ForwardSource<R>::at(c)};
  }
  GLUON_SYNCBN_HOST_DEVICE Values at(std::int64_t c) const { return load_cg(&normalizations[c]); }
};

/// With an activation behind it, and perhaps a shortcut in between.
template <class R, bool kShortcut>
struct ActivatedSource : StoringSource<R> {
  static constexpr bool kIsActivated = true;
  static constexpr int kInputs = kShortcut ? 2 : 1;  // x and the shortcut
  using Values = StoredAffine<R>;

  Activator<R> activator;

  template <int N, int kNumber>
  GLUON_SYNCBN_HOST_DEVICE void outputs(const Values* values, R (*elements)[kInputs],
                                        R (*results)[N]) const {
    each_of<N, kNumber>(values, elements, results[0]);
    if constexpr (kShortcut) {
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) results[0][i] += elements[i][1];
    }
    activator.template activate<N>(results[0]);
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

/// dx from dy and x, and before that the sums over all devices and the gradients of gamma and beta,
/// which are those of this device.
template <class R>
struct BackwardSource {
  static constexpr const char* kName = "input gradient";
  static constexpr bool kIsActivated = false;
  static constexpr int kInputs = 2;  // dy, x
  static constexpr int kOutputs = 1;
  using Values = Gradient<R>;
  using OfChannels = BackwardSource;

  Messages messages;  // none: statistics are constants
  const double* own;  // message of this device
  std::int64_t channels;
  const double* mean;
  const double* inv_std;
  const R* gamma;  // null: 1
  double count;    // elements per channel on all devices
  double* sums;    // as a message; what compute() leaves
  bool fix_gamma;
  ParameterGradient<R> gamma_gradient;
  ParameterGradient<R> beta_gradient;

  GLUON_SYNCBN_HOST_DEVICE void compute(std::int64_t c) const {
    if (messages.size > 0) {
      double first = 0;
      double second = 0;
      messages.for_each(channels, c, [&](const MergeWeight&, double own_first, double own_second) {
        first += own_first;
        second += own_second;
      });
      sums[c] = first;
      sums[channels + c] = second;
    }
    gamma_gradient.put(c, fix_gamma ? 0.0 : own[channels + c] * inv_std[c]);
    beta_gradient.put(c, own[c]);
  }

  GLUON_SYNCBN_HOST_DEVICE Gradient<R> at(std::int64_t c) const {
    const double dy_factor = (gamma ? static_cast<double>(gamma[c]) : 1.0) * inv_std[c];
    double x_factor = 0;
    double constant = 0;
    if (messages.size > 0) {
      const double factor = dy_factor / count;
      x_factor = -factor * load_cg(&sums[channels + c]) * inv_std[c] * inv_std[c];
      constant = -factor * load_cg(&sums[c]) - rest_of<R>(mean[c]) * x_factor;
    }
    return {static_cast<R>(mean[c]), static_cast<R>(dy_factor), static_cast<R>(x_factor),
            static_cast<R>(constant)};
  }

  template <int N, int kNumber>
  GLUON_SYNCBN_HOST_DEVICE void outputs(const Values* values, R (*elements)[kInputs],
                                        R (*results)[N]) const {
    each_of<N, kNumber>(values, elements, results[0]);
  }
};

/// Behind an activation, whose gate is told by the normalization, computed again: dy_factor is its
/// scale.
template <class R>
struct BackwardByInput : BackwardSource<R> {
  static constexpr bool kIsActivated = true;
  static constexpr int kInputs = 2;  // dy, x
  struct Values : Gradient<R> {
    R shift;
  };

  GateByInput<R> gate;

  GLUON_SYNCBN_HOST_DEVICE Values at(std::int64_t c) const {
    return {BackwardSource<R>::at(c), gate.normalizations[c].shift};
  }

  template <int N, int kNumber>
  GLUON_SYNCBN_HOST_DEVICE void outputs(const Values* values, R (*elements)[kInputs],
                                        R (*results)[N]) const {
    R centers[kNumber];
    typename GateByInput<R>::Channel channels[kNumber];
    GLUON_SYNCBN_UNROLL
    for (int n = 0; n < kNumber; ++n) {
      centers[n] = values[n].mean;
      channels[n] = {values[n].dy_factor, values[n].shift};
    }
    gate.template apply<N, kNumber>(channels, centers, elements);
    each_of<N, kNumber>(values, elements, results[0]);
  }
};

/// Behind an activation, whose gate is told by the output, with the gradient of a shortcut.
template <class R>
struct BackwardByOutput : BackwardSource<R> {
  static constexpr bool kIsActivated = true;
  static constexpr int kInputs = 3;  // dy, x, y
  static constexpr int kOutputs = 2;
  using Values = Gradient<R>;

  GateByOutput<R> gate;

  template <int N, int kNumber>
  GLUON_SYNCBN_HOST_DEVICE void outputs(const Values* values, R (*elements)[kInputs],
                                        R (*results)[N]) const {
    gate.template apply<N, 1>(nullptr, nullptr, elements);
    each_of<N, kNumber>(values, elements, results[0]);
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < N; ++i) results[1][i] = elements[i][0];
  }
};

/// In place, where the output tells everything: of the values, mean is that of z and x_factor the
/// factor of z.
template <class R>
struct BackwardInPlace : BackwardSource<R> {
  static constexpr bool kIsActivated = true;
  static constexpr int kInputs = 2;  // dy, y
  using Values = Gradient<R>;

  GateInPlace<R> gate;

  GLUON_SYNCBN_HOST_DEVICE Values at(std::int64_t c) const {
    const double inv_std = this->inv_std[c];
    const double dy_factor = (this->gamma ? static_cast<double>(this->gamma[c]) : 1.0) * inv_std;
    double z_factor = 0;  // that of x divided by gamma * inv_std
    double constant = 0;
    if (this->messages.size > 0) {
      z_factor = -load_cg(&this->sums[this->channels + c]) * inv_std * inv_std / this->count;
      constant = -load_cg(&this->sums[c]) * dy_factor / this->count;
    }
    return {gate.beta[c], static_cast<R>(dy_factor), static_cast<R>(z_factor),
            static_cast<R>(constant)};
  }

  template <int N, int kNumber>
  GLUON_SYNCBN_HOST_DEVICE void outputs(const Values* values, R (*elements)[kInputs],
                                        R (*results)[N]) const {
    gate.template recover<N>(elements);
    each_of<N, kNumber>(values, elements, results[0]);
  }
};

/// Reads what another GPU has, to see whether that works.
struct ReadNumbers {
  static constexpr const char* kName = "check of peer access";

  const double* from;
  double* to;

  GLUON_SYNCBN_HOST_DEVICE void compute(std::int64_t i) const { to[i] = from[i]; }
};

/// A channel whose output does not tell its input.
struct NotInvertible {
  double channel = -1;  // none
  double gamma = 0;
  double beta = 0;
};

/// Finds the first such channel of every block, in place.
template <class R>
struct FindNotInvertible {
  static constexpr const char* kName = "check of gamma";

  Invertible invertible;
  const R* gamma;  // null: 1
  const R* beta;
  std::int64_t channels;
  NotInvertible* found;  // of blocks, in memory of the host; written if there is one

  struct Shared {
    bool is_bad[kThreads];
  };
  struct Thread {};
  static constexpr int kSteps = 2;
  static constexpr int kResident = kResidentBlocks<double, false>;

  std::int64_t blocks() const { return (channels + kThreads - 1) / kThreads; }

  GLUON_SYNCBN_HOST_DEVICE bool step(int step, std::uint32_t block, std::uint32_t thread, Thread*,
                                     Shared* shared) const {
    const std::int64_t c = std::int64_t{block} * kThreads + thread;
    const double of_gamma = gamma && c < channels ? static_cast<double>(gamma[c]) : 1.0;
    const double of_beta = c < channels ? static_cast<double>(beta[c]) : 0.0;
    if (step == 0) {
      shared->is_bad[thread] = !invertible.holds(of_gamma, of_beta);
      return true;
    }
    if (!shared->is_bad[thread]) return true;
    for (std::uint32_t i = 0; i < thread; ++i) {
      if (shared->is_bad[i]) return true;
    }
    found[block] = {static_cast<double>(c), of_gamma, of_beta};
    return true;
  }
};

/// Computes a source where there is no output to be written.
template <class Source>
struct Channels {
  static constexpr const char* kName = Source::kName;

  Source source;
  std::int64_t size;

  struct Shared {};
  struct Thread {};
  static constexpr int kSteps = 1;
  static constexpr int kResident = kResidentBlocks<double, false>;

  std::int64_t blocks() const { return (size + kThreads - 1) / kThreads; }

  GLUON_SYNCBN_HOST_DEVICE bool step(int, std::uint32_t block, std::uint32_t thread, Thread*,
                                     Shared*) const {
    const std::int64_t c = std::int64_t{block} * kThreads + thread;
    if (c < size) source.compute(c);
    return true;
  }
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_KERNELS_CHANNELS_H_

#ifndef GLUON_SYNCBN_CORE_CUDA_CHANNEL_BODIES_H_
#define GLUON_SYNCBN_CORE_CUDA_CHANNEL_BODIES_H_

#include <cmath>
#include <cstdint>

#include "core/cuda/body.h"
#include "core/cuda/partition.h"
#include "core/moments.h"
#include "core/moving_average.h"

namespace gluon_syncbn::cuda {

/// Merges what the blocks of a pass have found into one number per channel. Several threads share a
/// channel, each with every so many of its items, and a fixed tree joins them.
constexpr int kMergeChannels = 32;
constexpr int kMergeThreads = kThreads / kMergeChannels;

struct Nothing {};

template <class Partition, class Item>
struct Merge {
  static constexpr const char* kName = Item::kMerge;

  Partition partition;
  const double* first;  // of partition.item()
  const double* second;
  double* message;

  struct Shared {
    Item items[kThreads];
  };
  using Thread = Nothing;
  static constexpr int kSteps = 4;
  static_assert(kMergeThreads == 1 << (kSteps - 1));

  std::int64_t blocks() const { return (partition.channels + kMergeChannels - 1) / kMergeChannels; }

  GLUON_SYNCBN_HOST_DEVICE void step(int step, std::int64_t block, int thread, Thread*,
                                     Shared* shared) const {
    const std::int64_t channel = block * kMergeChannels + thread % kMergeChannels;
    Item& own = shared->items[thread];
    if (step == 0) {
      own.clear();
      if (channel >= partition.channels) return;
      for (std::int64_t i = thread / kMergeChannels; i < partition.items(); i += kMergeThreads) {
        const std::int64_t item = partition.item(i, channel);
        own.add({partition.count(i, channel), first[item], second[item]});
      }
      return;
    }
    const int stride = kThreads >> step;
    if (thread < stride) own.add(shared->items[thread + stride]);
    if (step + 1 == kSteps && thread < kMergeChannels && channel < partition.channels) {
      message[channel] = own.first;
      message[partition.channels + channel] = own.second;
    }
  }
};

/// The messages of all devices, in the order of devices: two numbers per channel of each, the
/// second behind the first of all channels.
constexpr int kMostDevices = 64;

struct Messages {
  const double* values[kMostDevices];
  std::int64_t counts[kMostDevices];  // elements per channel
  int size;
};

/// A thread for each of `size` numbers, which calls each(i).
template <class Each>
struct ForEach {
  static constexpr const char* kName = Each::kName;

  Each each;
  std::int64_t size;

  using Shared = Nothing;
  using Thread = Nothing;
  static constexpr int kSteps = 1;

  std::int64_t blocks() const { return (size + kThreads - 1) / kThreads; }

  GLUON_SYNCBN_HOST_DEVICE void step(int, std::int64_t block, int thread, Thread*, Shared*) const {
    const std::int64_t i = block * kThreads + thread;
    if (i < size) each(i);
  }
};

/// Moments of the whole batch from those of all devices, merged as on the CPU.
struct BatchStatistics {
  static constexpr const char* kName = "batch statistics";

  Messages messages;
  std::int64_t channels;
  double eps;
  double* mean;
  double* variance;
  double* inv_std;

  GLUON_SYNCBN_HOST_DEVICE void operator()(std::int64_t c) const {
    std::int64_t count = 0;
    double merged_mean = 0;
    double merged_m2 = 0;
    for (int i = 0; i < messages.size; ++i) {
      if (messages.counts[i] == 0) continue;
      merge_channel(count, &merged_mean, &merged_m2, messages.counts[i], messages.values[i][c],
                    messages.values[i][channels + c]);
      count += messages.counts[i];
    }
    mean[c] = merged_mean;
    variance[c] = merged_m2 / static_cast<double>(count);
    inv_std[c] = 1.0 / std::sqrt(variance[c] + eps);
  }
};

/// Statistics of an inference from running ones.
template <class P>
struct RunningStatistics {
  static constexpr const char* kName = "running statistics";

  const P* running_mean;
  const P* running_variance;
  double eps;
  double* mean;
  double* inv_std;

  GLUON_SYNCBN_HOST_DEVICE void operator()(std::int64_t c) const {
    mean[c] = static_cast<double>(running_mean[c]);
    inv_std[c] = 1.0 / std::sqrt(static_cast<double>(running_variance[c]) + eps);
  }
};

template <class P>
struct MoveAverages {
  static constexpr const char* kName = "update of running statistics";

  const double* mean;
  const double* variance;
  double momentum;
  const P* num_batches;  // not null: of the average over all batches so far
  P* running_mean;
  P* running_variance;

  GLUON_SYNCBN_HOST_DEVICE void operator()(std::int64_t c) const {
    const double weight =
        num_batches ? momentum_of_average(static_cast<double>(*num_batches) + 1.0) : momentum;
    move(mean[c], weight, &running_mean[c]);
    move(variance[c], weight, &running_variance[c]);
  }

 private:
  GLUON_SYNCBN_HOST_DEVICE static void move(double value, double weight, P* average) {
    *average = static_cast<P>(moved_average(static_cast<double>(*average), weight, value));
  }
};

/// Behind MoveAverages, whose threads all read the number.
template <class P>
struct CountBatch {
  static constexpr const char* kName = "count of batches";

  P* num_batches;

  GLUON_SYNCBN_HOST_DEVICE void operator()(std::int64_t) const {
    *num_batches = static_cast<P>(static_cast<double>(*num_batches) + 1.0);
  }
};

/// Sums of the gradients of all devices.
struct SumMessages {
  static constexpr const char* kName = "sum of gradient sums";

  Messages messages;
  double* sums;  // two per channel, as a message

  GLUON_SYNCBN_HOST_DEVICE void operator()(std::int64_t c) const {
    double sum = messages.values[0][c];
    for (int i = 1; i < messages.size; ++i) sum += messages.values[i][c];
    sums[c] = sum;
  }
};

/// Gradients of gamma and beta of one device.
template <class P>
struct ParameterGradients {
  static constexpr const char* kName = "parameter gradients";

  const double* sums;  // of this device
  const double* inv_std;
  std::int64_t channels;
  bool fix_gamma;
  bool add_gamma;
  bool add_beta;
  P* gamma;  // null: not wanted
  P* beta;   // null: not wanted

  GLUON_SYNCBN_HOST_DEVICE void operator()(std::int64_t c) const {
    if (gamma) put(fix_gamma ? 0.0 : sums[channels + c] * inv_std[c], add_gamma, &gamma[c]);
    if (beta) put(sums[c], add_beta, &beta[c]);
  }

 private:
  GLUON_SYNCBN_HOST_DEVICE static void put(double value, bool add, P* gradient) {
    *gradient = static_cast<P>((add ? static_cast<double>(*gradient) : 0.0) + value);
  }
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CORE_CUDA_CHANNEL_BODIES_H_

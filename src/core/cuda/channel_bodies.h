#ifndef GLUON_SYNCBN_CORE_CUDA_CHANNEL_BODIES_H_
#define GLUON_SYNCBN_CORE_CUDA_CHANNEL_BODIES_H_

#include <cmath>
#include <cstdint>

#include "core/cuda/body.h"
#include "core/cuda/partition.h"
#include "core/moments.h"

namespace gluon_syncbn::cuda {

/// Merges what the blocks of a pass have found into one number per channel. Several threads share a
/// channel, each with every so many of its items, and a fixed tree joins them.
constexpr int kMergeChannels = 32;
constexpr int kMergeThreads = kThreads / kMergeChannels;

template <class Partition>
struct MergeMoments {
  static constexpr const char* kName = "merge of moments";

  Partition partition;
  const double* mean;  // of partition.item()
  const double* m2;
  double* merged_mean;  // of channels
  double* merged_m2;

  struct Shared {
    std::int64_t count[kThreads];
    double mean[kThreads];
    double m2[kThreads];
  };
  struct Thread {};
  static constexpr int kSteps = 4;
  static_assert(kMergeThreads == 1 << (kSteps - 1));

  std::int64_t blocks() const { return (partition.channels + kMergeChannels - 1) / kMergeChannels; }

  GLUON_SYNCBN_HOST_DEVICE void step(int step, std::int64_t block, int thread, Thread*,
                                     Shared* shared) const {
    const std::int64_t channel = block * kMergeChannels + thread % kMergeChannels;
    if (step == 0) {
      shared->count[thread] = 0;
      shared->mean[thread] = 0;
      shared->m2[thread] = 0;
      if (channel >= partition.channels) return;
      for (std::int64_t i = thread / kMergeChannels; i < partition.items(); i += kMergeThreads) {
        const std::int64_t item = partition.item(i, channel);
        merge(thread, shared, partition.count(i, channel), mean[item], m2[item]);
      }
      return;
    }
    const int stride = kThreads >> step;
    if (thread < stride) {
      const int other = thread + stride;
      merge(thread, shared, shared->count[other], shared->mean[other], shared->m2[other]);
    }
    if (step + 1 == kSteps && thread < kMergeChannels && channel < partition.channels) {
      merged_mean[channel] = shared->mean[thread];
      merged_m2[channel] = shared->m2[thread];
    }
  }

 private:
  GLUON_SYNCBN_HOST_DEVICE static void merge(int thread, Shared* shared, std::int64_t count,
                                             double mean, double m2) {
    if (count == 0) return;
    merge_channel(shared->count[thread], &shared->mean[thread], &shared->m2[thread], count, mean,
                  m2);
    shared->count[thread] += count;
  }
};

template <class Partition>
struct MergeSums {
  static constexpr const char* kName = "merge of gradient sums";

  Partition partition;
  const double* first;  // of partition.item()
  const double* second;
  double* merged_first;  // of channels
  double* merged_second;

  struct Shared {
    double first[kThreads];
    double second[kThreads];
  };
  struct Thread {};
  static constexpr int kSteps = 4;
  static_assert(kMergeThreads == 1 << (kSteps - 1));

  std::int64_t blocks() const { return (partition.channels + kMergeChannels - 1) / kMergeChannels; }

  GLUON_SYNCBN_HOST_DEVICE void step(int step, std::int64_t block, int thread, Thread*,
                                     Shared* shared) const {
    const std::int64_t channel = block * kMergeChannels + thread % kMergeChannels;
    if (step == 0) {
      shared->first[thread] = 0;
      shared->second[thread] = 0;
      if (channel >= partition.channels) return;
      for (std::int64_t i = thread / kMergeChannels; i < partition.items(); i += kMergeThreads) {
        const std::int64_t item = partition.item(i, channel);
        shared->first[thread] += first[item];
        shared->second[thread] += second[item];
      }
      return;
    }
    const int stride = kThreads >> step;
    if (thread < stride) {
      shared->first[thread] += shared->first[thread + stride];
      shared->second[thread] += shared->second[thread + stride];
    }
    if (step + 1 == kSteps && thread < kMergeChannels && channel < partition.channels) {
      merged_first[channel] = shared->first[thread];
      merged_second[channel] = shared->second[thread];
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

/// A thread for every channel.
inline std::int64_t blocks_for(std::int64_t channels) {
  return (channels + kThreads - 1) / kThreads;
}
struct Nothing {};

/// Moments of the whole batch from those of all devices, merged as on the CPU.
struct BatchStatistics {
  static constexpr const char* kName = "batch statistics";

  Messages messages;
  std::int64_t channels;
  double eps;
  double* mean;
  double* variance;
  double* inv_std;

  using Shared = Nothing;
  using Thread = Nothing;
  static constexpr int kSteps = 1;

  GLUON_SYNCBN_HOST_DEVICE void step(int, std::int64_t block, int thread, Thread*, Shared*) const {
    const std::int64_t c = block * kThreads + thread;
    if (c >= channels) return;
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
  std::int64_t channels;
  double eps;
  double* mean;
  double* inv_std;

  using Shared = Nothing;
  using Thread = Nothing;
  static constexpr int kSteps = 1;

  GLUON_SYNCBN_HOST_DEVICE void step(int, std::int64_t block, int thread, Thread*, Shared*) const {
    const std::int64_t c = block * kThreads + thread;
    if (c >= channels) return;
    mean[c] = static_cast<double>(running_mean[c]);
    inv_std[c] = 1.0 / std::sqrt(static_cast<double>(running_variance[c]) + eps);
  }
};

template <class P>
struct MoveAverages {
  static constexpr const char* kName = "update of running statistics";

  const double* mean;
  const double* variance;
  std::int64_t channels;
  double momentum;
  const P* num_batches;  // not null: of the average over all batches so far
  P* running_mean;
  P* running_variance;

  using Shared = Nothing;
  using Thread = Nothing;
  static constexpr int kSteps = 1;

  GLUON_SYNCBN_HOST_DEVICE void step(int, std::int64_t block, int thread, Thread*, Shared*) const {
    const std::int64_t c = block * kThreads + thread;
    if (c >= channels) return;
    const double weight =
        num_batches ? 1.0 - 1.0 / (static_cast<double>(*num_batches) + 1.0) : momentum;
    move(mean[c], weight, &running_mean[c]);
    move(variance[c], weight, &running_variance[c]);
  }

 private:
  GLUON_SYNCBN_HOST_DEVICE static void move(double value, double weight, P* average) {
    *average = static_cast<P>(static_cast<double>(*average) * weight + value * (1.0 - weight));
  }
};

/// Behind MoveAverages, whose threads all read the number.
template <class P>
struct CountBatch {
  static constexpr const char* kName = "count of batches";

  P* num_batches;

  using Shared = Nothing;
  using Thread = Nothing;
  static constexpr int kSteps = 1;

  GLUON_SYNCBN_HOST_DEVICE void step(int, std::int64_t, int thread, Thread*, Shared*) const {
    if (thread == 0) *num_batches = static_cast<P>(static_cast<double>(*num_batches) + 1.0);
  }
};

/// Sums of the gradients of all devices.
struct SumMessages {
  static constexpr const char* kName = "sum of gradient sums";

  Messages messages;
  std::int64_t channels;
  double* sums;  // two per channel, as a message

  using Shared = Nothing;
  using Thread = Nothing;
  static constexpr int kSteps = 1;

  GLUON_SYNCBN_HOST_DEVICE void step(int, std::int64_t block, int thread, Thread*, Shared*) const {
    const std::int64_t c = block * kThreads + thread;
    if (c >= 2 * channels) return;
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

  using Shared = Nothing;
  using Thread = Nothing;
  static constexpr int kSteps = 1;

  GLUON_SYNCBN_HOST_DEVICE void step(int, std::int64_t block, int thread, Thread*, Shared*) const {
    const std::int64_t c = block * kThreads + thread;
    if (c >= channels) return;
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

#ifndef GLUON_SYNCBN_CPU_CHANNEL_MATH_H_
#define GLUON_SYNCBN_CPU_CHANNEL_MATH_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cpu/kernels.h"
#include "norm/backend.h"
#include "norm/moments.h"

/// What the CPU computes of one number a channel.
namespace gluon_syncbn {

struct HostStatistics : Statistics {
  std::vector<double> mean;
  std::vector<double> variance;
  std::vector<double> inv_std;

  /// Not yet set.
  explicit HostStatistics(std::size_t channels)
      : mean(channels), variance(channels), inv_std(channels) {}

  void set(std::size_t channel, double mean, double variance, double eps);

  static const HostStatistics& of(const Statistics& statistics) {
    return static_cast<const HostStatistics&>(statistics);
  }
};

/// All channels of `data`.
cpu::ChannelRange all_channels(const Backend::Data& data);

StatisticsPtr running_statistics_on_host(const Backend::Data& data, const void* running_mean,
                                         const void* running_variance, double eps);
void move_averages_on_host(const Backend::Data& data, const Update& update);

/// For some channels. `gamma` may be null: 1.
cpu::Normalization normalization_of(const Backend::Data& data, cpu::ChannelRange channels,
                                    const HostStatistics& statistics, const void* gamma,
                                    const void* beta, const Activation& activation);

/// What the backward pass reads of an activation.
template <class T>
cpu::Gate<T> gate_of(const Backend::Backward& pass) {
  cpu::Gate<T> gate{pass.activation, static_cast<const T*>(pass.y), {}, {}};
  if (!pass.beta || (pass.activation.type == ActType::kNone && !pass.inplace)) return gate;
  auto normalization =
      normalization_of(pass.data, all_channels(pass.data), HostStatistics::of(*pass.statistics),
                       pass.gamma, pass.beta, pass.activation);
  gate.scale = std::move(normalization.scale);
  gate.shift = std::move(normalization.shift);
  if (!pass.inplace) return gate;
  for (double& scale : gate.scale) scale = 1 / scale;
  return gate;
}

/// Throws Error unless the output tells the input in every channel.
void require_invertible(const Backend::Backward& pass);

/// For some channels. `all_devices` is null, and `count` without meaning, if the statistics are not
/// those of the batch (Backend::Backward::of_batch).
cpu::InputGradient input_gradient_of(const Backend::Data& data, cpu::ChannelRange channels,
                                     const HostStatistics& statistics,
                                     const GradientSums* all_devices, std::int64_t count,
                                     const void* gamma);

void write_parameter_gradients(const Backend::Data& data, const GradientSums& own,
                               const HostStatistics& statistics,
                               const Backend::Gradients& gradients);

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_CPU_CHANNEL_MATH_H_

#include "cpu/channel_math.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "common/dtype.h"
#include "common/error.h"
#include "norm/invertible.h"
#include "norm/moving_average.h"

namespace gluon_syncbn {
namespace {

using cpu::ChannelRange;

std::size_t size_of(ChannelRange channels) {
  return static_cast<std::size_t>(channels.end - channels.begin);
}

std::vector<double> some(const std::vector<double>& values, ChannelRange channels) {
  return std::vector<double>(values.begin() + channels.begin, values.begin() + channels.end);
}

template <class P>
std::vector<double> to_doubles(const void* array, ChannelRange channels) {
  const P* values = static_cast<const P*>(array);
  return std::vector<double>(values + channels.begin, values + channels.end);
}

template <class P>
std::vector<double> gamma_of(const void* gamma, ChannelRange channels) {
  return gamma ? to_doubles<P>(gamma, channels) : std::vector<double>(size_of(channels), 1.0);
}

template <class P>
void write_gradient(const std::vector<double>& values, WriteMode write, void* array) {
  if (!array) return;
  P* gradient = static_cast<P*>(array);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double before = write == WriteMode::kAdd ? static_cast<double>(gradient[i]) : 0.0;
    gradient[i] = static_cast<P>(before + values[i]);
  }
}

template <class P>
void move_average(const std::vector<double>& batch, double momentum, void* array) {
  P* running = static_cast<P*>(array);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    running[i] = static_cast<P>(moved_average(static_cast<double>(running[i]), momentum, batch[i]));
  }
}

/// That of an average over all batches, which are one more now.
template <class P>
double next_momentum(void* num_batches) {
  P* count = static_cast<P*>(num_batches);
  const double batches = static_cast<double>(*count) + 1.0;
  *count = static_cast<P>(batches);
  return momentum_of_average(batches);
}

/// The arrays one after the other.
template <class P>
void save_or_restore(std::int64_t channels, const RunningStatistics& running,
                     SavedStatistics* saved) {
  const std::pair<void*, std::int64_t> arrays[] = {
      {running.mean, channels},
      {running.variance, channels},
      {running.num_batches, running.num_batches ? 1 : 0}};
  const bool restore = saved->values != nullptr;
  if (!restore) saved->values = std::make_shared<std::vector<P>>(2 * channels + 1);
  P* at = static_cast<std::vector<P>*>(saved->values.get())->data();
  for (const auto& [array, size] : arrays) {
    P* values = static_cast<P*>(array);
    const P* from = restore ? at : values;
    std::copy_n(from, size, restore ? values : at);
    at += size;
  }
}

/// Returns visit(P()) with the type P of parameters for such data.
template <class Visit>
auto with_parameter_type(const Backend::Data& data, const Visit& visit) {
  return dispatch(data.dtype,
                  [&](auto types) { return visit(typename decltype(types)::Parameter()); });
}

}  // namespace

void HostStatistics::set(std::size_t channel, double mean_in, double variance_in, double eps) {
  mean[channel] = mean_in;
  variance[channel] = variance_in;
  inv_std[channel] = 1.0 / std::sqrt(variance_in + eps);
}

ChannelRange all_channels(const Backend::Data& data) { return {0, data.layout.channels}; }

StatisticsPtr running_statistics_on_host(const Backend::Data& data, const void* running_mean,
                                         const void* running_variance, double eps) {
  return with_parameter_type(data, [&](auto parameter) {
    using P = decltype(parameter);
    const auto mean = to_doubles<P>(running_mean, all_channels(data));
    const auto variance = to_doubles<P>(running_variance, all_channels(data));
    auto statistics = std::make_shared<HostStatistics>(mean.size());
    for (std::size_t c = 0; c < mean.size(); ++c) statistics->set(c, mean[c], variance[c], eps);
    return statistics;
  });
}

void move_averages_on_host(const Backend::Data& data, const Update& update) {
  with_parameter_type(data, [&](auto parameter) {
    using P = decltype(parameter);
    const RunningStatistics& running = update.running;
    if (update.saved) save_or_restore<P>(data.layout.channels, running, update.saved.get());
    for (const auto& each : update.batches) {
      const HostStatistics& batch = HostStatistics::of(*each);
      const double momentum =
          running.momentum ? *running.momentum : next_momentum<P>(running.num_batches);
      move_average<P>(batch.mean, momentum, running.mean);
      move_average<P>(batch.variance, momentum, running.variance);
    }
  });
}

cpu::Normalization normalization_of(const Backend::Data& data, ChannelRange channels,
                                    const HostStatistics& statistics, const void* gamma,
                                    const void* beta, const Activation& activation) {
  return with_parameter_type(data, [&](auto parameter) {
    using P = decltype(parameter);
    cpu::Normalization normalization{some(statistics.mean, channels), gamma_of<P>(gamma, channels),
                                     to_doubles<P>(beta, channels), activation};
    const double* inv_std = statistics.inv_std.data() + channels.begin;
    for (double& scale : normalization.scale) scale *= *inv_std++;
    return normalization;
  });
}

void require_invertible(const Backend::Backward& pass) {
  const Invertible invertible = Invertible::of(pass.data.dtype, pass.activation);
  with_parameter_type(pass.data, [&](auto parameter) {
    using P = decltype(parameter);
    const auto gamma = gamma_of<P>(pass.gamma, all_channels(pass.data));
    const auto beta = to_doubles<P>(pass.beta, all_channels(pass.data));
    for (std::size_t c = 0; c < gamma.size(); ++c) {
      if (invertible.holds(gamma[c], beta[c])) continue;
      throw Error(invertible.error(static_cast<std::int64_t>(c), gamma[c], beta[c]));
    }
  });
}

cpu::InputGradient input_gradient_of(const Backend::Data& data, ChannelRange channels,
                                     const HostStatistics& statistics,
                                     const GradientSums* all_devices, std::int64_t count,
                                     const void* gamma) {
  const std::size_t size = size_of(channels);
  const auto begin = static_cast<std::size_t>(channels.begin);
  cpu::InputGradient gradient{
      some(statistics.mean, channels),
      with_parameter_type(
          data, [&](auto parameter) { return gamma_of<decltype(parameter)>(gamma, channels); }),
      std::vector<double>(size), std::vector<double>(size)};
  for (std::size_t i = 0; i < size; ++i) {
    const double inv_std = statistics.inv_std[begin + i];
    gradient.dy_factor[i] *= inv_std;
    if (!all_devices) continue;
    const double factor = gradient.dy_factor[i] / static_cast<double>(count);
    gradient.x_factor[i] = -factor * all_devices->dy_centered[begin + i] * inv_std * inv_std;
    gradient.constant[i] = -factor * all_devices->dy[begin + i];
  }
  return gradient;
}

void write_parameter_gradients(const Backend::Data& data, const GradientSums& own,
                               const HostStatistics& statistics,
                               const Backend::Gradients& gradients) {
  std::vector<double> gamma(own.dy_centered.size(), 0.0);
  if (!gradients.fix_gamma) {
    for (std::size_t c = 0; c < gamma.size(); ++c) {
      gamma[c] = own.dy_centered[c] * statistics.inv_std[c];
    }
  }
  with_parameter_type(data, [&](auto parameter) {
    using P = decltype(parameter);
    write_gradient<P>(gamma, gradients.write_gamma, gradients.gamma);
    write_gradient<P>(own.dy, gradients.write_beta, gradients.beta);
  });
}

}  // namespace gluon_syncbn

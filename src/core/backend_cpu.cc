#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/kernels_cpu.h"
#include "core/moving_average.h"

namespace gluon_syncbn {
namespace {

struct HostStatistics : Statistics {
  std::vector<double> mean;
  std::vector<double> variance;
  std::vector<double> inv_std;

  HostStatistics(std::vector<double> mean_in, std::vector<double> variance_in, double eps)
      : mean(std::move(mean_in)), variance(std::move(variance_in)) {
    inv_std.reserve(variance.size());
    for (const double value : variance) inv_std.push_back(1.0 / std::sqrt(value + eps));
  }

  static const HostStatistics& of(const Statistics& statistics) {
    return static_cast<const HostStatistics&>(statistics);
  }
};

std::size_t channels_of(const Backend::Data& data) {
  return static_cast<std::size_t>(data.layout.channels);
}

template <class P>
std::vector<double> to_doubles(const void* array, std::size_t size) {
  const P* values = static_cast<const P*>(array);
  return std::vector<double>(values, values + size);
}

template <class P>
std::vector<double> gamma_of(const void* gamma, std::size_t channels) {
  return gamma ? to_doubles<P>(gamma, channels) : std::vector<double>(channels, 1.0);
}

template <class P>
void write_gradient(const std::vector<double>& values, Write write, void* array) {
  if (!array) return;
  P* gradient = static_cast<P*>(array);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double before = write == Write::kAdd ? static_cast<double>(gradient[i]) : 0.0;
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

template <class P>
void write_parameter_gradients(const GradientSums& own, const HostStatistics& statistics,
                               const Backend::Gradients& gradients) {
  std::vector<double> gamma(own.dy_centered.size(), 0.0);
  if (!gradients.fix_gamma) {
    for (std::size_t c = 0; c < gamma.size(); ++c) {
      gamma[c] = own.dy_centered[c] * statistics.inv_std[c];
    }
  }
  write_gradient<P>(gamma, gradients.write_gamma, gradients.gamma);
  write_gradient<P>(own.dy, gradients.write_beta, gradients.beta);
}

class CpuBackend : public Backend {
 public:
  bool keeps_caller_busy() const override { return true; }

  Moments moments(const Data& data, const void* x) override {
    return with_types(data.element, [&](auto types) {
      using T = typename decltype(types)::Data;
      return cpu::moments(static_cast<const T*>(x), data.layout);
    });
  }

  StatisticsPtr batch_statistics(const Data&, const Moments& merged, double eps) override {
    std::vector<double> variance = merged.m2;
    for (double& value : variance) value /= static_cast<double>(merged.count);
    return std::make_shared<const HostStatistics>(merged.mean, std::move(variance), eps);
  }

  StatisticsPtr running_statistics(const Data& data, const void* running_mean,
                                   const void* running_variance, double eps) override {
    return with_types(data.element, [&](auto types) -> StatisticsPtr {
      using P = typename decltype(types)::Parameter;
      return std::make_shared<const HostStatistics>(
          to_doubles<P>(running_mean, channels_of(data)),
          to_doubles<P>(running_variance, channels_of(data)), eps);
    });
  }

  void move_averages(const Data& data, const Statistics& batch,
                     const RunningStatistics& running) override {
    const auto& statistics = HostStatistics::of(batch);
    with_types(data.element, [&](auto types) {
      using P = typename decltype(types)::Parameter;
      const double momentum =
          running.momentum ? *running.momentum : next_momentum<P>(running.num_batches);
      move_average<P>(statistics.mean, momentum, running.mean);
      move_average<P>(statistics.variance, momentum, running.variance);
    });
  }

  void normalize(const Data& data, const void* x, const Statistics& given, const void* gamma,
                 const void* beta, Write write, void* y, const Update& update) override {
    for (const auto& batch : update.batches) move_averages(data, *batch, update.running);
    if (!y) return;
    const auto& statistics = HostStatistics::of(given);
    with_types(data.element, [&](auto types) {
      using T = typename decltype(types)::Data;
      using P = typename decltype(types)::Parameter;
      cpu::Normalization normalization{statistics.mean, gamma_of<P>(gamma, channels_of(data)),
                                       to_doubles<P>(beta, channels_of(data))};
      for (std::size_t c = 0; c < channels_of(data); ++c) {
        normalization.scale[c] *= statistics.inv_std[c];
      }
      cpu::normalize(static_cast<const T*>(x), data.layout, normalization, write,
                     static_cast<T*>(y));
    });
  }

  GradientSums gradient_sums(const Data& data, const void* dy, const void* x,
                             const Statistics& statistics) override {
    return with_types(data.element, [&](auto types) {
      using T = typename decltype(types)::Data;
      return cpu::gradient_sums(static_cast<const T*>(dy), static_cast<const T*>(x), data.layout,
                                HostStatistics::of(statistics).mean);
    });
  }

  void gradients(const Data& data, const void* dy, const void* x, const Statistics& given,
                 const GradientSums& own, const GradientSums* all_devices, std::int64_t count,
                 const void* gamma, const Gradients& gradients) override {
    const auto& statistics = HostStatistics::of(given);
    with_types(data.element, [&](auto types) {
      using T = typename decltype(types)::Data;
      using P = typename decltype(types)::Parameter;
      write_parameter_gradients<P>(own, statistics, gradients);
      if (!gradients.data) return;
      const std::size_t channels = channels_of(data);
      cpu::InputGradient gradient{statistics.mean, gamma_of<P>(gamma, channels),
                                  std::vector<double>(channels), std::vector<double>(channels)};
      for (std::size_t c = 0; c < channels; ++c) {
        const double inv_std = statistics.inv_std[c];
        gradient.dy_factor[c] *= inv_std;
        if (!all_devices) continue;
        const double factor = gradient.dy_factor[c] / static_cast<double>(count);
        gradient.x_factor[c] = -factor * all_devices->dy_centered[c] * inv_std * inv_std;
        gradient.constant[c] = -factor * all_devices->dy[c];
      }
      cpu::input_gradient(static_cast<const T*>(dy), static_cast<const T*>(x), data.layout,
                          gradient, gradients.write_data, static_cast<T*>(gradients.data));
    });
  }

  void finish(std::function<void(const std::string& error)> done) override { done(""); }
};

}  // namespace

const std::shared_ptr<Backend>& cpu_backend() {
  static const std::shared_ptr<Backend>& backend =
      *new std::shared_ptr<Backend>(std::make_shared<CpuBackend>());
  return backend;
}

}  // namespace gluon_syncbn

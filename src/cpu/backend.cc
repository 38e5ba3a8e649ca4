#include "norm/backend.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "cpu/channel_math.h"
#include "cpu/kernels.h"
#include "cpu/passes.h"

namespace gluon_syncbn {
namespace {

class CpuBackend : public Backend {
 public:
  bool keeps_caller_busy() const override { return true; }

  std::shared_ptr<Share> share(Forward forward) override {
    return share_on_host(std::move(forward));
  }

  std::shared_ptr<Share> share(Backward backward) override {
    return share_on_host(std::move(backward));
  }

  Moments moments(const Data& data, const void* x) override {
    return with_types(data.element, [&](auto types) {
      using T = typename decltype(types)::Data;
      return cpu::moments(static_cast<const T*>(x), data.layout);
    });
  }

  StatisticsPtr batch_statistics(const Data&, const Moments& merged, double eps) override {
    auto statistics = std::make_shared<HostStatistics>(merged.mean.size());
    for (std::size_t c = 0; c < merged.mean.size(); ++c) {
      statistics->set(c, merged.mean[c], merged.variance(c), eps);
    }
    return statistics;
  }

  StatisticsPtr running_statistics(const Data& data, const void* running_mean,
                                   const void* running_variance, double eps) override {
    return running_statistics_on_host(data, running_mean, running_variance, eps);
  }

  void move_averages(const Data& data, const Statistics& batch,
                     const RunningStatistics& running) override {
    move_averages_on_host(data, HostStatistics::of(batch), running);
  }

  void normalize(const Data& data, const void* x, const Statistics& statistics, const void* gamma,
                 const void* beta, Write write, void* y, const Update& update) override {
    for (const auto& batch : update.batches) move_averages(data, *batch, update.running);
    if (!y) return;
    const auto normalization =
        normalization_of(data, all_channels(data), HostStatistics::of(statistics), gamma, beta);
    with_types(data.element, [&](auto types) {
      using T = typename decltype(types)::Data;
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
    write_parameter_gradients(data, own, statistics, gradients);
    if (!gradients.data) return;
    const auto gradient =
        input_gradient_of(data, all_channels(data), statistics, all_devices, count, gamma);
    with_types(data.element, [&](auto types) {
      using T = typename decltype(types)::Data;
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

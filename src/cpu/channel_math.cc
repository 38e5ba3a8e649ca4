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

/// Element c of an array of P.
template <class P, class Index>
double number(const void* array, Index c) {
  return static_cast<double>(static_cast<const P*>(array)[c]);
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

/// Counts one more batch, and returns the momentum of the average over all batches.
template <class P>
double next_momentum(void* num_batches) {
  P* count = static_cast<P*>(num_batches);
  const double batches = static_cast<double>(*count) + 1.0;
  *count = static_cast<P>(batches);
  return momentum_of_average(batches);
}

/// Returns visit(P()) for the type P of the parameters for this data.
template <class Visit>
auto with_parameter_type(const Backend::Data& data, const Visit& visit) {
  return dispatch(data.dtype,
                  [&](auto types) { return visit(typename decltype(types)::Parameter()); });
}

}  // namespace

HostStatistics::HostStatistics(std::int64_t count, std::int64_t channels)
    : inv_std(static_cast<std::size_t>(channels)) {
  this->count = count;
  mean = m2 = inv_std;
}

void HostStatistics::set_inv_std(std::size_t channel, double eps) {
  inv_std[channel] = 1.0 / std::sqrt(variance(channel) + eps);
}

StatisticsPtr running_statistics_on_host(const Backend::Data& data, const void* running_mean,
                                         const void* running_variance, double eps) {
  return with_parameter_type(data, [&](auto parameter) {
    using P = decltype(parameter);
    auto statistics = std::make_shared<HostStatistics>(1, data.layout.channels);
    for (std::size_t c = 0; c < statistics->mean.size(); ++c) {
      statistics->mean[c] = number<P>(running_mean, c);
      statistics->m2[c] = number<P>(running_variance, c);
      statistics->set_inv_std(c, eps);
    }
    return statistics;
  });
}

void move_running_statistics(const Backend::Forward& work, const Moments& batch) {
  if (!work.running.mean) return;
  with_parameter_type(work.data, [&](auto parameter) {
    using P = decltype(parameter);
    const Backend::Running& running = work.running;
    const double momentum =
        running.momentum ? *running.momentum : next_momentum<P>(running.num_batches);
    for (std::size_t c = 0; c < batch.mean.size(); ++c) {
      move_averages(momentum, batch.mean[c], batch.variance(c), static_cast<P*>(running.mean) + c,
                    static_cast<P*>(running.variance) + c);
    }
  });
}

void require_invertible(const Backend::Backward& pass) {
  const Invertible invertible = Invertible::of(pass.data.dtype, pass.activation);
  with_parameter_type(pass.data, [&](auto parameter) {
    using P = decltype(parameter);
    for (std::int64_t c = 0; c < pass.data.layout.channels; ++c) {
      const double gamma = pass.gamma ? number<P>(pass.gamma, c) : 1;
      const double beta = number<P>(pass.beta, c);
      if (!invertible.holds(gamma, beta)) throw Error(invertible.error(c, gamma, beta));
    }
  });
}

void write_parameter_gradients(const Backend::Data& data, const GradientSums& own,
                               const HostStatistics& statistics,
                               const Backend::Gradients& gradients) {
  std::vector<double> gamma(own.dy_centered.size(), 0.0);
  // Without elements the sum is 0, also where inv_std is infinite.
  if (!gradients.fix_gamma && data.layout.count() > 0) {
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

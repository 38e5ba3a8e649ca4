#include "cpu/channel_math.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/dtype.h"
#include "common/error.h"
#include "norm/invertible.h"
#include "norm/per_channel.h"

namespace gluon_syncbn::cpu {
namespace {

/// Element c of an array of P.
template <class P, class Index>
double number(const void* array, Index c) {
  return static_cast<double>(static_cast<const P*>(array)[c]);
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
  inv_std[channel] = inv_std_of(variance(channel), eps);
}

std::shared_ptr<HostStatistics> running_statistics_on_host(const Backend::Forward& work) {
  return with_parameter_type(work.data, [&](auto parameter) {
    using P = decltype(parameter);
    auto statistics = std::make_shared<HostStatistics>(1, work.data.layout.channels);
    for (std::size_t c = 0; c < statistics->mean.size(); ++c) {
      statistics->mean[c] = number<P>(work.running.mean, c);
      statistics->m2[c] = number<P>(work.running.variance, c);
      statistics->set_inv_std(c, work.eps);
    }
    return statistics;
  });
}

void move_running_statistics(const Backend::Forward& work, const Moments& batch) {
  with_parameter_type(work.data, [&](auto parameter) {
    const auto averages = work.running.averages<decltype(parameter)>();
    for (std::size_t c = 0; c < batch.mean.size(); ++c) {
      averages.move(static_cast<std::int64_t>(c), batch.mean[c], batch.variance(c));
    }
    averages.count_batch();
  });
}

void require_invertible(const Backend::Backward& pass) {
  const Invertible invertible = Invertible::of(pass.data.dtype, pass.activation);
  with_parameter_type(pass.data, [&](auto parameter) {
    using P = decltype(parameter);
    for (std::int64_t c = 0; c < pass.data.layout.channels; ++c) {
      const auto gamma = static_cast<double>(gamma_of(static_cast<const P*>(pass.gamma), c));
      const double beta = number<P>(pass.beta, c);
      if (!invertible.holds(gamma, beta)) throw Error(invertible.error(c, gamma, beta));
    }
  });
}

void write_parameter_gradients(const Backend::Backward& work, const GradientSums& own,
                               const HostStatistics& statistics) {
  with_parameter_type(work.data, [&](auto parameter) {
    using P = decltype(parameter);
    const auto gamma = work.gamma_gradient<P>();
    const auto beta = work.beta_gradient<P>();
    for (std::size_t i = 0; i < own.dy.size(); ++i) {
      const auto c = static_cast<std::int64_t>(i);
      gamma.put(c, work.gamma_gradient_is_zero() ? 0 : own.dy_centered[i] * statistics.inv_std[i]);
      beta.put(c, own.dy[i]);
    }
  });
}

}  // namespace gluon_syncbn::cpu

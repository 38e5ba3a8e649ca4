#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "common/real.h"
#include "cpu/kernels.h"
#include "norm/moments.h"

/// The computations of CPU contexts on numbers per channel.
namespace gluon_syncbn::cpu {

/// Running statistics are moments of one element per channel, with the running variance as m2.
struct HostStatistics : Statistics, Moments {
  std::vector<double> inv_std;

  /// Makes zeros.
  HostStatistics(std::int64_t count, std::int64_t channels);

  void set_inv_std(std::size_t channel, double eps);

  static const HostStatistics& of(const Statistics& statistics) {
    return static_cast<const HostStatistics&>(statistics);
  }
};

std::shared_ptr<HostStatistics> running_statistics_on_host(const Backend::Forward& work);
/// Moves the running statistics of `work` towards the statistics of its batch.
void move_running_statistics(const Backend::Forward& work, const Moments& batch);

/// The numbers of the normalization for data of T. `gamma` may be null. `beta` may be null if no
/// kernel computes z.
template <class T>
ChannelParameters<T> channel_parameters(const HostStatistics& statistics, const void* gamma,
                                        const void* beta) {
  return {statistics.mean.data(), statistics.inv_std.data(), static_cast<const Real<T>*>(gamma),
          static_cast<const Real<T>*>(beta)};
}

/// Throws Error unless the input of every channel is recoverable from its output.
void require_invertible(const Backend::Backward& pass);

void write_parameter_gradients(const Backend::Backward& work, const GradientSums& own,
                               const HostStatistics& statistics);

}  // namespace gluon_syncbn::cpu

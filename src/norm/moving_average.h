#pragma once

#include <cmath>
#include <cstdint>

#include "common/host_device.h"

namespace gluon_syncbn {

/// Whether a batch with `count` elements per channel moves the running statistics. A batch without
/// elements has no statistics.
inline bool moves_averages(std::int64_t count) { return count > 0; }

/// Returns a running statistic after one more batch.
///
/// The explicit fma makes all devices compute the same bits. Without it a compiler could fuse
/// either of the two products with the sum, or none.
GLUON_SYNCBN_HOST_DEVICE inline double moved_average(double average, double momentum,
                                                     double batch) {
  return std::fma(average, momentum, batch * (1.0 - momentum));
}

/// Returns the momentum of the average over all batches, of which there are `batches` so far.
GLUON_SYNCBN_HOST_DEVICE inline double momentum_of_average(double batches) {
  return 1.0 - 1.0 / batches;
}

/// Moves the running statistics of one channel towards those of a batch. The running variance is
/// biased, as in MXNet; statistics/whole_data_set.py and diagnose/self_test.py expect that. The
/// unbiased one of PyTorch, variance * count / (count - 1), would take the count of the batch too.
template <class P>
GLUON_SYNCBN_HOST_DEVICE void move_averages(double momentum, double mean, double variance,
                                            P* running_mean, P* running_variance) {
  *running_mean = static_cast<P>(moved_average(static_cast<double>(*running_mean), momentum, mean));
  *running_variance =
      static_cast<P>(moved_average(static_cast<double>(*running_variance), momentum, variance));
}

}  // namespace gluon_syncbn

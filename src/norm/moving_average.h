#ifndef GLUON_SYNCBN_NORM_MOVING_AVERAGE_H_
#define GLUON_SYNCBN_NORM_MOVING_AVERAGE_H_

#include <cmath>

#include "common/host_device.h"

namespace gluon_syncbn {

/// A running statistic after one more batch. The same bits on every device: a compiler could fuse
/// the sum of two products in either of two ways, or not at all, and so says which.
GLUON_SYNCBN_HOST_DEVICE inline double moved_average(double average, double momentum,
                                                     double batch) {
  return std::fma(average, momentum, batch * (1.0 - momentum));
}

/// The momentum that makes an average over `batches` of one over those before the last.
GLUON_SYNCBN_HOST_DEVICE inline double momentum_of_average(double batches) {
  return 1.0 - 1.0 / batches;
}

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_NORM_MOVING_AVERAGE_H_

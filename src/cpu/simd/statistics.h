#pragma once

#include <cstdint>

#include "cpu/simd/vectors.h"

namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA {
namespace {

/// The moments of n numbers, from the sums of their deviations d from a pivot.
///
/// M2 is sum(d^2) - sum(d)^2 / n. If the pivot is within a standard deviation of the mean, this
/// difference loses at most one bit, and is as exact as two passes. Otherwise (is_far) the caller
/// reads the numbers again, with their mean as pivot.
struct PivotSums {
  double pivot;
  double sum;
  double squares;

  /// `share` is 1 / n, because one division for all columns saves time.
  GLUON_SYNCBN_INLINE double correction(double share) const { return sum * sum * share; }
  GLUON_SYNCBN_INLINE double mean(double share) const { return pivot + sum * share; }
  GLUON_SYNCBN_INLINE double m2(double share) const {
    const double difference = squares - correction(share);
    return difference < 0 ? 0 : difference;  // keeps NaN
  }
  GLUON_SYNCBN_INLINE bool is_far(double share) const { return 2 * correction(share) > squares; }
};

}  // namespace
}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA

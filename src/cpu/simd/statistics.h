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
template <class V>
struct PivotSums {
  V pivot;
  V sum;
  V squares;

  /// `share` is 1 / n, because one division for all columns saves time.
  GLUON_SYNCBN_INLINE V correction(double share) const { return sum * sum * share; }
  GLUON_SYNCBN_INLINE V mean(double share) const { return pivot + sum * share; }
  GLUON_SYNCBN_INLINE V m2(double share) const {
    const V difference = squares - correction(share);
    return difference < V{} ? V{} : difference;  // keeps NaN
  }
};

GLUON_SYNCBN_INLINE bool is_far(const PivotSums<double>& d, double share) {
  return 2 * d.correction(share) > d.squares;
}

GLUON_SYNCBN_INLINE bool is_far(const PivotSums<Doubles>& d, double share) {
  const Indices far = 2 * d.correction(share) > d.squares;
  std::int64_t any = 0;
  for (std::int64_t i = 0; i < kDoubles; ++i) any |= far[i];
  return any != 0;
}

}  // namespace
}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA

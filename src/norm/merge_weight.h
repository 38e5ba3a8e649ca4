#pragma once

#include <cstdint>

#include "common/inline.h"

namespace gluon_syncbn {

/// The weights with which moments merge into others, the same for all channels: the update of
/// T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating formulae and a pairwise algorithm for
/// computing sample variances", 1979, eq. 2.1.
///
/// The functions are inlined everywhere, because cpu/simd/ may share no function with other files.
struct MergeWeight {
  double of_merged;     ///< the share of the newly merged elements in all elements so far
  double count_before;  ///< the number of elements before

  GLUON_SYNCBN_INLINE static MergeWeight of(std::int64_t count_before, std::int64_t count) {
    return {static_cast<double>(count) / static_cast<double>(count_before + count),
            static_cast<double>(count_before)};
  }

  GLUON_SYNCBN_INLINE void merge(double mean, double m2, double* merged_mean,
                                 double* merged_m2) const {
    // The weight 0 would not do: the square of delta may be infinite.
    if (count_before == 0) {
      *merged_mean = mean;
      *merged_m2 = m2;
      return;
    }
    const double delta = mean - *merged_mean;
    *merged_mean += delta * of_merged;
    *merged_m2 += m2 + delta * delta * of_merged * count_before;
  }
};

}  // namespace gluon_syncbn

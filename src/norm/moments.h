#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "norm/merge_weight.h"

namespace gluon_syncbn {

/// The numbers that a process sends to the other processes: Moments or GradientSums, packed.
struct PartialStatistics {
  std::int64_t count = 0;      ///< the count of Moments; 0 for GradientSums
  std::vector<double> values;  ///< the first numbers of all channels, then the second numbers
};

/// Count, mean and sum of squared deviations from the mean of every channel.
///
/// Moments of disjoint samples merge without loss of precision (MergeWeight). A sum of squares
/// would cancel if the mean is large.
struct Moments {
  std::int64_t count = 0;    ///< elements per channel; 64 bits, never a float
  std::vector<double> mean;  ///< one per channel
  std::vector<double> m2;    ///< one per channel

  /// Merges in the order of `parts`. A part without elements does not change the result.
  static Moments merge(const std::vector<const Moments*>& parts);
  /// Merges the channels in [begin, end) alone. `merged` has room for all channels.
  static void merge(const std::vector<const Moments*>& parts, std::size_t begin, std::size_t end,
                    Moments* merged);

  /// The biased variance. It is 0 if there are no elements, so that the outputs stay numbers.
  double variance(std::size_t channel) const {
    return count > 0 ? m2[channel] / static_cast<double>(count) : 0.0;
  }

  PartialStatistics packed() const;
  static Moments of(const PartialStatistics& packed);
};

/// The sums that a backward pass exchanges.
struct GradientSums {
  std::vector<double> dy;           ///< the sum of the output gradient, one per channel
  std::vector<double> dy_centered;  ///< the sum of dy * (x - mean), one per channel

  static GradientSums merge(const std::vector<const GradientSums*>& parts);
  static void merge(const std::vector<const GradientSums*>& parts, std::size_t begin,
                    std::size_t end, GradientSums* merged);

  PartialStatistics packed() const;
  static GradientSums of(const PartialStatistics& packed);
};

/// Merges packed Moments or GradientSums in the order of `parts`, which must not be empty.
template <class Part>
Part merge_packed(const std::vector<PartialStatistics>& parts) {
  // One part at a time: the unpacked parts of hundreds of processes would not fit the caches.
  Part merged = Part::of(parts.front());
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const Part next = Part::of(parts[i]);
    merged = Part::merge({&merged, &next});
  }
  return merged;
}

}  // namespace gluon_syncbn

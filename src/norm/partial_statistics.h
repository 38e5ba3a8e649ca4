#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace gluon_syncbn {

enum class Direction { kForward, kBackward };

/// Returns memory of the host for `number` doubles, which are 0.
std::shared_ptr<double> new_zeros(std::int64_t number);

/// The partial statistics of a pass, of a device, a process or the whole batch: two numbers per
/// channel, in memory of the host. Copies share the numbers.
///
/// In forward these are moments: the mean and M2, the sum of squared deviations from the mean.
/// Moments of disjoint samples merge without loss of precision (MergeWeight). A sum of squares
/// would cancel if the mean is large.
struct PartialStatistics {
  std::int64_t count = 0;  ///< elements per channel; 64 bits, never a float
  std::int64_t channels = 0;
  std::shared_ptr<double> numbers;  ///< all first numbers, then all second numbers

  static PartialStatistics zeros(std::int64_t count, std::int64_t channels);
  /// Zeros with the count of all `parts`, which must not be empty, to merge them into.
  static PartialStatistics room_for(const std::vector<PartialStatistics>& parts);

  // In forward.
  double* mean() const { return numbers.get(); }
  double* m2() const { return numbers.get() + channels; }
  /// The biased variance. It is 0 if there are no elements, so that the outputs stay numbers.
  double variance(std::int64_t c) const {
    return count > 0 ? m2()[c] / static_cast<double>(count) : 0.0;
  }

  // In backward: the sums of dz and of dz * (x - mean), where dz is dy without an activation.
  double* dz() const { return numbers.get(); }
  double* dz_centered() const { return numbers.get() + channels; }
};

/// Merges in the order of `parts`, which must not be empty. A part without elements does not change
/// the result.
PartialStatistics merge(Direction direction, const std::vector<PartialStatistics>& parts);
/// Merges the channels in [begin, end) alone, into PartialStatistics::room_for(parts).
void merge(Direction direction, const std::vector<PartialStatistics>& parts, std::int64_t begin,
           std::int64_t end, const PartialStatistics& merged);

}  // namespace gluon_syncbn

#include "norm/partial_statistics.h"

#include <cstddef>

#include "norm/merge_weight.h"

namespace gluon_syncbn {

PartialStatistics PartialStatistics::zeros(std::int64_t count, std::int64_t channels) {
  const auto doubles = static_cast<std::size_t>(2 * channels);
  return {count, channels, {new double[doubles](), std::default_delete<double[]>()}};
}

PartialStatistics merge(Direction direction, const std::vector<PartialStatistics>& parts) {
  auto merged = PartialStatistics::zeros(0, parts.front().channels);
  for (const auto& part : parts) merged.count += part.count;
  merge(direction, parts, 0, merged.channels, merged);
  return merged;
}

void merge(Direction direction, const std::vector<PartialStatistics>& parts, std::int64_t begin,
           std::int64_t end, const PartialStatistics& merged) {
  std::int64_t count = 0;
  for (const auto& part : parts) {
    if (direction == Direction::kBackward) {
      for (auto c = begin; c < end; ++c) {
        merged.dz()[c] += part.dz()[c];
        merged.dz_centered()[c] += part.dz_centered()[c];
      }
    } else if (part.count > 0) {
      const auto weight = MergeWeight::of(count, part.count);
      for (auto c = begin; c < end; ++c) {
        weight.merge(part.mean()[c], part.m2()[c], &merged.mean()[c], &merged.m2()[c]);
      }
      count += part.count;
    }
  }
}

}  // namespace gluon_syncbn

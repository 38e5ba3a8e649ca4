#include "norm/partial_statistics.h"

#include <cstddef>

#include "norm/merge_weight.h"

namespace gluon_syncbn {

/// No new[]: if its size is not constant, it needs a function of libstdc++ that older systems lack.
std::shared_ptr<double> new_zeros(std::int64_t number) {
  const auto zeros = std::make_shared<std::vector<double>>(static_cast<std::size_t>(number));
  return {zeros, zeros->data()};
}

PartialStatistics PartialStatistics::zeros(std::int64_t count, std::int64_t channels) {
  return {count, channels, new_zeros(2 * channels)};
}

PartialStatistics PartialStatistics::room_for(const std::vector<PartialStatistics>& parts) {
  auto room = zeros(0, parts.front().channels);
  for (const auto& part : parts) room.count += part.count;
  return room;
}

PartialStatistics merge(Direction direction, const std::vector<PartialStatistics>& parts) {
  const auto merged = PartialStatistics::room_for(parts);
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

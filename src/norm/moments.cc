#include "norm/moments.h"

#include <cstddef>
#include <utility>

namespace gluon_syncbn {

namespace {

std::vector<double> join(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> values;
  values.reserve(a.size() + b.size());
  values.insert(values.end(), a.begin(), a.end());
  values.insert(values.end(), b.begin(), b.end());
  return values;
}

void split(const std::vector<double>& values, std::vector<double>* a, std::vector<double>* b) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  a->assign(values.begin(), middle);
  b->assign(middle, values.end());
}

}  // namespace

Moments Moments::merge(const std::vector<const Moments*>& parts) {
  Moments merged;
  for (const Moments* part : parts) merged.count += part->count;
  const std::size_t channels = parts.empty() ? 0 : parts.front()->mean.size();
  merged.mean.resize(channels);
  merged.m2.resize(channels);
  merge(parts, 0, channels, &merged);
  return merged;
}

void Moments::merge(const std::vector<const Moments*>& parts, std::size_t begin, std::size_t end,
                    Moments* merged) {
  std::int64_t count = 0;
  for (const Moments* part : parts) {
    if (part->count == 0) continue;
    const auto weight = MergeWeight::of(count, part->count);
    for (std::size_t c = begin; c < end; ++c) {
      weight.merge(part->mean[c], part->m2[c], &merged->mean[c], &merged->m2[c]);
    }
    count += part->count;
  }
}

PartialStatistics Moments::packed() const { return {count, join(mean, m2)}; }

Moments Moments::of(const PartialStatistics& packed) {
  Moments moments;
  moments.count = packed.count;
  split(packed.values, &moments.mean, &moments.m2);
  return moments;
}

GradientSums GradientSums::merge(const std::vector<const GradientSums*>& parts) {
  GradientSums merged;
  const std::size_t channels = parts.empty() ? 0 : parts.front()->dy.size();
  merged.dy.resize(channels);
  merged.dy_centered.resize(channels);
  merge(parts, 0, channels, &merged);
  return merged;
}

void GradientSums::merge(const std::vector<const GradientSums*>& parts, std::size_t begin,
                         std::size_t end, GradientSums* merged) {
  for (std::size_t c = begin; c < end; ++c) {
    double dy = 0;
    double dy_centered = 0;
    for (const GradientSums* part : parts) {
      dy += part->dy[c];
      dy_centered += part->dy_centered[c];
    }
    merged->dy[c] = dy;
    merged->dy_centered[c] = dy_centered;
  }
}

PartialStatistics GradientSums::packed() const { return {0, join(dy, dy_centered)}; }

GradientSums GradientSums::of(const PartialStatistics& packed) {
  GradientSums sums;
  split(packed.values, &sums.dy, &sums.dy_centered);
  return sums;
}

}  // namespace gluon_syncbn

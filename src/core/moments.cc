#include "core/moments.h"

#include <cstddef>
#include <utility>

namespace gluon_syncbn {

namespace {

/// The backend of each device will merge them, all in this order.
template <class Part>
RemoteParts collect(const std::vector<const Part*>& parts) {
  RemoteParts all;
  for (const Part* part : parts) {
    all.insert(all.end(), part->remote.begin(), part->remote.end());
  }
  return all;
}

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
  if (auto remote = collect(parts); !remote.empty()) {
    for (const Moments* part : parts) merged.count += part->count;
    merged.remote = std::move(remote);
    return merged;
  }
  for (const Moments* part : parts) {
    if (part->count == 0) continue;
    if (merged.count == 0) {
      merged = *part;
      continue;
    }
    for (std::size_t c = 0; c < merged.mean.size(); ++c) {
      merge_channel(merged.count, &merged.mean[c], &merged.m2[c], part->count, part->mean[c],
                    part->m2[c]);
    }
    merged.count += part->count;
  }
  if (merged.count == 0 && !parts.empty()) merged = *parts.front();
  return merged;
}

FlatPart Moments::flat() const { return {count, join(mean, m2)}; }

Moments Moments::of(const FlatPart& flat) {
  Moments moments;
  moments.count = flat.count;
  split(flat.values, &moments.mean, &moments.m2);
  return moments;
}

GradientSums GradientSums::merge(const std::vector<const GradientSums*>& parts) {
  GradientSums merged;
  merged.remote = collect(parts);
  if (!merged.remote.empty()) return merged;
  for (const GradientSums* part : parts) {
    if (merged.dy.empty()) {
      merged = *part;
      continue;
    }
    for (std::size_t c = 0; c < merged.dy.size(); ++c) {
      merged.dy[c] += part->dy[c];
      merged.dy_centered[c] += part->dy_centered[c];
    }
  }
  return merged;
}

FlatPart GradientSums::flat() const { return {0, join(dy, dy_centered)}; }

GradientSums GradientSums::of(const FlatPart& flat) {
  GradientSums sums;
  split(flat.values, &sums.dy, &sums.dy_centered);
  return sums;
}

}  // namespace gluon_syncbn

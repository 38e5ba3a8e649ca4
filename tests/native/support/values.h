#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "norm/partial_statistics.h"

namespace gluon_syncbn::tests {

/// Draws roughly normal numbers, which are the same with every standard library.
class Normal {
 public:
  explicit Normal(std::uint32_t seed) : generator_(seed) {}

  double operator()(double mean, double deviation) {
    double sum = 0;  // of four uniform numbers, each of variance 1/3
    for (int i = 0; i < 4; ++i) sum += static_cast<double>(generator_() >> 32) * 0x1p-32 - 0.5;
    return mean + deviation * sum * 1.7320508075688772;
  }

 private:
  /// Knuth's generator for MMIX. Its state is one number, which keeps it fast under sanitizers.
  std::linear_congruential_engine<std::uint64_t, 6364136223846793005u, 1442695040888963407u, 0>
      generator_;
};

/// Compares bits, so that signed zeros differ and a NaN equals itself.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class... Arrays>
bool same_bits(const std::tuple<Arrays...>& a, const std::tuple<Arrays...>& b) {
  return std::apply(
      [&](const auto&... arrays) {
        return std::apply([&](const auto&... others) { return (same_bits(arrays, others) && ...); },
                          b);
      },
      a);
}

inline PartialStatistics statistics_of(std::int64_t count, const std::vector<double>& first,
                                       const std::vector<double>& second) {
  const auto statistics = PartialStatistics::zeros(count, static_cast<std::int64_t>(first.size()));
  std::copy(first.begin(), first.end(), statistics.mean());
  std::copy(second.begin(), second.end(), statistics.m2());
  return statistics;
}

inline std::vector<double> numbers_of(const PartialStatistics& statistics) {
  return {statistics.numbers.get(), statistics.numbers.get() + 2 * statistics.channels};
}

inline bool same_bits(const PartialStatistics& a, const PartialStatistics& b) {
  return a.count == b.count && same_bits(numbers_of(a), numbers_of(b));
}

/// Partial statistics of a pass in this direction.
struct Part {
  Direction direction;
  PartialStatistics statistics;
};

inline bool same_bits(const Part& a, const Part& b) {
  return a.direction == b.direction && same_bits(a.statistics, b.statistics);
}

inline Part merge_all(const std::vector<Part>& parts) {
  std::vector<PartialStatistics> all;
  for (const Part& part : parts) all.push_back(part.statistics);
  return {parts.front().direction, merge(parts.front().direction, all)};
}

/// Returns moments of two channels that differ for each number, and whose merged value depends on
/// the order of merging.
inline Part some_moments(std::uint32_t number) {
  Normal normal(number);
  std::vector<double> mean, m2;
  for (int channel = 0; channel < 2; ++channel) {
    mean.push_back(normal(100.0 + number, 10));
    m2.push_back(1.0 / (1.0 + number + channel));
  }
  return {Direction::kForward, statistics_of(1 + number % 7, mean, m2)};
}

/// Like some_moments().
inline Part some_sums(std::uint32_t number) {
  Normal normal(number);
  std::vector<double> dz, dz_centered;
  for (int channel = 0; channel < 2; ++channel) {
    dz.push_back(normal(number, 10));
    dz_centered.push_back(normal(-1.0 * number, 10));
  }
  return {Direction::kBackward, statistics_of(0, dz, dz_centered)};
}

}  // namespace gluon_syncbn::tests

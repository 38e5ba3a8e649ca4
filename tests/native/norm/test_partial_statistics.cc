#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "norm/partial_statistics.h"
#include "support/oracle.h"
#include "support/values.h"

namespace gluon_syncbn::tests {
namespace {

using Sample = std::vector<double>;

ExactMoments exact_moments(const Sample& sample) {
  const auto size = static_cast<std::int64_t>(sample.size());
  return ExactMoments({{{size, 1, 1}}, {{sample.begin(), sample.end()}}});
}

/// Moments as exact as double holds them, of one channel.
PartialStatistics moments_of(const Sample& sample) {
  if (sample.empty()) return statistics_of(0, {0}, {0});
  const ExactMoments exact = exact_moments(sample);
  return statistics_of(static_cast<std::int64_t>(sample.size()),
                       {static_cast<double>(exact.mean[0])}, {static_cast<double>(exact.m2[0])});
}

PartialStatistics merged_moments(const std::vector<PartialStatistics>& parts) {
  return merge(Direction::kForward, parts);
}

/// The merged moments of `samples` against those of all their values together.
void check_merge(const std::vector<Sample>& samples) {
  Sample all;
  std::vector<PartialStatistics> parts;
  for (const Sample& sample : samples) {
    all.insert(all.end(), sample.begin(), sample.end());
    parts.push_back(moments_of(sample));
  }
  const auto merged = merged_moments(parts);
  const ExactMoments exact = exact_moments(all);
  const long double mean = exact.mean[0];
  const long double m2 = exact.m2[0];
  REQUIRE(merged.count == static_cast<std::int64_t>(all.size()));

  const auto unit = static_cast<long double>(samples.size()) * 0x1p-52L;
  const long double deviation = std::sqrt(m2 / static_cast<long double>(all.size()));
  CHECK(std::fabs(merged.mean()[0] - mean) <= unit * (std::fabs(mean) + deviation));
  // A mean is at best exact to its last bit, which the difference of two means then carries.
  const long double condition = 1 + std::fabs(mean) / std::max(deviation, 1e-30L);
  CHECK(std::fabs(merged.m2()[0] - m2) <= unit * condition * m2);
}

/// Of two channels.
PartialStatistics large(std::int64_t count, double mean, double variance) {
  const auto elements = static_cast<double>(count);
  return statistics_of(count, {mean, -mean}, {variance * elements, 2 * variance * elements});
}

}  // namespace

TEST_CASE("moments: merging gives the moments of the concatenation") {
  std::mt19937 generator(1);
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Normal normal(seed);
    const double mean = std::pow(10.0, seed % 6) - 1;
    std::vector<Sample> samples(2 + seed % 7);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      // Counts differ by orders of magnitude; some parts hold one element, some none.
      const auto size = static_cast<std::size_t>(std::pow(10.0, (i + seed) % 4));
      samples[i].resize((i + seed) % 5 == 4 ? 0 : generator() % size + 1);
      const double part_mean = normal(mean, 1);
      for (double& value : samples[i]) value = normal(part_mean, 1);
    }
    check_merge(samples);
  }
}

TEST_CASE("moments: parts far apart, equal parts and constant parts") {
  check_merge({{1, 2, 3}, {1e9, 1e9 + 1}, {-1e9}});
  check_merge({{1, 2, 4}, {1, 2, 4}, {1, 2, 4}});
  check_merge({{7}, {7}, {7, 7}});
  check_merge({{-3}, {5}});
}

TEST_CASE("moments: a part without elements changes nothing, wherever it stands") {
  const auto empty = statistics_of(0, {0, 0}, {0, 0});
  const auto garbage = statistics_of(0, {1e300, -5}, {7, 1e300});
  const auto a = some_moments(1).statistics;
  const auto b = some_moments(2).statistics;
  const auto expected = merged_moments({a, b});
  CHECK(same_bits(merged_moments({empty, a, b}), expected));
  CHECK(same_bits(merged_moments({a, empty, garbage, b}), expected));
  CHECK(same_bits(merged_moments({garbage, a, b, empty}), expected));
  CHECK(same_bits(merged_moments({empty, a}), a));
  CHECK(same_bits(merged_moments({a}), a));
}

TEST_CASE("moments: where no part has elements the result has the same channels and no NaN") {
  const auto empty = statistics_of(0, {0, 0, 0}, {0, 0, 0});
  CHECK(same_bits(merged_moments({empty, empty}), empty));
  CHECK(same_bits(merged_moments({empty}), empty));
  CHECK(empty.variance(0) == 0);
}

TEST_CASE("moments: what is not a number stays in its channel, wherever its part stands") {
  const auto a = some_moments(1).statistics;
  const auto spoiled = some_moments(2).statistics;
  const auto expected = merged_moments({a, spoiled, a});
  spoiled.mean()[0] = std::numeric_limits<double>::quiet_NaN();
  for (const auto& parts :
       {std::vector<PartialStatistics>{spoiled, a, a}, {a, spoiled, a}, {a, a, spoiled}}) {
    const auto merged = merged_moments(parts);
    CHECK(std::isnan(merged.mean()[0]));
    CHECK(std::isnan(merged.m2()[0]));
    CHECK(merged.mean()[1] == doctest::Approx(expected.mean()[1]).epsilon(1e-14));
    CHECK(merged.m2()[1] == doctest::Approx(expected.m2()[1]).epsilon(1e-14));
  }
}

TEST_CASE("moments: a mean whose square no double can hold") {
  const auto huge = statistics_of(2, {-3e200}, {4});
  CHECK(same_bits(merged_moments({huge}), huge));
  const auto merged = merged_moments({huge, huge, huge});
  CHECK(merged.mean()[0] == -3e200);
  CHECK(merged.m2()[0] == 12);
}

TEST_CASE("moments: counts that no float, and none that 32 bits, can hold") {
  const std::int64_t beyond_float = (std::int64_t{1} << 24) + 1;
  const std::int64_t beyond_32_bits = (std::int64_t{1} << 32) + 3;
  const std::int64_t huge = (std::int64_t{1} << 60) + 1;
  for (const std::int64_t count_a : {std::int64_t{1}, beyond_float, beyond_32_bits, huge}) {
    for (const std::int64_t count_b : {std::int64_t{1}, beyond_float, beyond_32_bits}) {
      CAPTURE(count_a);
      CAPTURE(count_b);
      const auto a = large(count_a, 3, 1);
      const auto b = large(count_b, 5, 4);
      const auto merged = merged_moments({a, b});
      REQUIRE(merged.count == count_a + count_b);
      const auto n_a = static_cast<long double>(count_a);
      const auto n_b = static_cast<long double>(count_b);
      for (std::size_t c = 0; c < 2; ++c) {
        const long double mean = (n_a * a.mean()[c] + n_b * b.mean()[c]) / (n_a + n_b);
        const long double delta = b.mean()[c] - a.mean()[c];
        const long double m2 = a.m2()[c] + b.m2()[c] + delta * delta * (n_a / (n_a + n_b)) * n_b;
        CHECK(std::fabs(merged.mean()[c] - mean) <= 0x1p-51L * std::fabs(mean));
        CHECK(std::fabs(merged.m2()[c] - m2) <= 0x1p-50L * m2);
      }
    }
  }
}

TEST_CASE("gradient sums: merging adds them up, channel by channel") {
  for (std::uint32_t parts = 1; parts < 8; ++parts) {
    CAPTURE(parts);
    std::vector<PartialStatistics> sums;
    for (std::uint32_t i = 0; i < parts; ++i) sums.push_back(some_sums(i).statistics);
    const auto merged = merge(Direction::kBackward, sums);
    REQUIRE(merged.channels == 2);
    for (std::size_t c = 0; c < 2; ++c) {
      double dy = 0;
      double dy_centered = 0;
      for (const auto& part : sums) {
        dy += part.dz()[c];
        dy_centered += part.dz_centered()[c];
      }
      CHECK(merged.dz()[c] == dy);
      CHECK(merged.dz_centered()[c] == dy_centered);
    }
  }
}

}  // namespace gluon_syncbn::tests

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "norm/moments.h"

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

inline bool same_bits(const Moments& a, const Moments& b) {
  return a.count == b.count && same_bits(a.mean, b.mean) && same_bits(a.m2, b.m2);
}

inline bool same_bits(const GradientSums& a, const GradientSums& b) {
  return same_bits(a.dy, b.dy) && same_bits(a.dy_centered, b.dy_centered);
}

template <class Part>
Part merge_all(const std::vector<Part>& parts) {
  std::vector<const Part*> pointers;
  for (const Part& part : parts) pointers.push_back(&part);
  return Part::merge(pointers);
}

/// Returns moments of two channels that differ for each number, and whose merged value depends on
/// the order of merging.
inline Moments some_moments(std::uint32_t number) {
  Normal normal(number);
  Moments moments{1 + number % 7, {}, {}};
  for (int channel = 0; channel < 2; ++channel) {
    moments.mean.push_back(normal(100.0 + number, 10));
    moments.m2.push_back(1.0 / (1.0 + number + channel));
  }
  return moments;
}

/// Like some_moments().
inline GradientSums some_sums(std::uint32_t number) {
  Normal normal(number);
  GradientSums sums;
  for (int channel = 0; channel < 2; ++channel) {
    sums.dy.push_back(normal(number, 10));
    sums.dy_centered.push_back(normal(-1.0 * number, 10));
  }
  return sums;
}

}  // namespace gluon_syncbn::tests

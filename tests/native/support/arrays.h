#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "common/dtype.h"
#include "common/half.h"
#include "common/layout.h"
#include "support/values.h"

namespace gluon_syncbn::tests {

/// Converts numbers to and from elements of T, and says how exact arithmetic on them should be.
template <class T>
struct Type {
  static constexpr DType kDType = std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64;
  static T of(double value) { return static_cast<T>(value); }
  static long double value(T element) { return element; }
  /// The greatest relative error of one arithmetic operation.
  static constexpr long double kUnit = std::is_same_v<T, float> ? 0x1p-24L : 0x1p-53L;
  /// The greatest error of storing a result.
  static long double storing(long double) { return 0; }
};

template <>
struct Type<Half> {
  static constexpr DType kDType = DType::kFloat16;
  static Half of(double value) { return to_half(static_cast<float>(value)); }
  static long double value(Half element) { return to_float(element); }
  static constexpr long double kUnit = 0x1p-24L;
  static long double storing(long double result) { return 0x1p-11L * std::fabs(result) + 0x1p-25L; }
};

/// Returns an array of (outer, channels, inner) in which each channel has its own mean.
template <class T>
struct Data {
  Layout layout;
  std::vector<T> elements;

  Data(const Layout& layout_in, double mean, double deviation, std::uint32_t seed)
      : layout(layout_in) {
    Normal normal(seed);
    elements.reserve(size_of(layout));
    for (std::int64_t outer = 0; outer < layout.outer; ++outer) {
      for (std::int64_t c = 0; c < layout.channels; ++c) {
        const double channel_mean = mean * (1 - static_cast<double>(c) / 512);
        for (std::int64_t i = 0; i < layout.inner; ++i) {
          elements.push_back(Type<T>::of(normal(channel_mean, deviation)));
        }
      }
    }
  }

  static std::size_t size_of(const Layout& layout) {
    return static_cast<std::size_t>(layout.outer * layout.channels * layout.inner);
  }
  const T* data() const { return elements.data(); }
  std::vector<long double> values() const {
    std::vector<long double> values;
    for (const T element : elements) values.push_back(Type<T>::value(element));
    return values;
  }
  std::size_t channel(std::size_t i) const {
    return i / static_cast<std::size_t>(layout.inner) % static_cast<std::size_t>(layout.channels);
  }
  long double at(std::size_t i) const { return Type<T>::value(elements[i]); }
};

/// Returns one number per channel, around `centre`.
inline std::vector<double> parameters(const Layout& layout, double centre, std::uint32_t seed) {
  Normal normal(seed);
  std::vector<double> values;
  for (std::int64_t c = 0; c < layout.channels; ++c) values.push_back(normal(centre, 0.3));
  return values;
}

template <class R>
std::vector<R> as(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

/// Returns means that double represents and float does not.
inline std::vector<double> means_near(const Layout& layout, double mean, std::uint32_t seed) {
  Normal normal(seed);
  std::vector<double> values;
  for (std::int64_t c = 0; c < layout.channels; ++c) {
    values.push_back(mean * (1 - static_cast<double>(c) / 512) + normal(0, 0.01));
  }
  return values;
}

/// Returns the mean of the data of case `number`.
inline double mean_of(std::uint32_t number) {
  const double all[] = {0, 1, -37, 1e3, 1e4};
  return all[number % 5];
}

}  // namespace gluon_syncbn::tests

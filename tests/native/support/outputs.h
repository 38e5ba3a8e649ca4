#ifndef GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_OUTPUTS_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_OUTPUTS_H_

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "common/layout.h"
#include "common/write_mode.h"
#include "support/arrays.h"
#include "support/values.h"

namespace gluon_syncbn::tests {

/// Numbers per channel, about `centre`.
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

/// Means that double holds and float does not.
inline std::vector<double> means_near(const Layout& layout, double mean, std::uint32_t seed) {
  Normal normal(seed);
  std::vector<double> values;
  for (std::int64_t c = 0; c < layout.channels; ++c) {
    values.push_back(mean * (1 - static_cast<double>(c) / 512) + normal(0, 0.01));
  }
  return values;
}

/// Lets kernel(write, out) change the array `out` in both ways of writing, and counts the elements
/// that are further from reference(i) than magnitude(i), the sum of its absolute terms, allows.
template <class T, class Kernel, class Value, class Magnitude>
void check_output(const Data<T>& x, const Kernel& kernel, const Value& reference,
                  const Magnitude& magnitude) {
  const Data<T> before(x.layout, 2, 1, 77);
  // A mean in two floats is exact to twice their bits.
  const long double split = std::is_same_v<T, double> ? 0 : 2e4L * 0x1p-48L;
  for (const WriteMode write : {WriteMode::kAssign, WriteMode::kAdd}) {
    std::vector<T> out = before.elements;
    kernel(write, &out);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const long double added = write == WriteMode::kAdd ? before.at(i) : 0;
      const long double expected = reference(i) + added;
      const long double tolerance = 6 * Type<T>::kUnit * (magnitude(i) + std::fabs(added)) + split +
                                    Type<T>::storing(expected);
      if (!(std::fabs(Type<T>::value(out[i]) - expected) <= tolerance)) ++wrong;
    }
    CAPTURE((write == WriteMode::kAdd));
    CHECK(wrong == 0);
  }
}

/// Mean and M2 of all channels in `found`, merged in double of sums in which deviations have the
/// relative error `unit`.
template <class T>
void check_moments(const Data<T>& x, const std::vector<double>& found, long double unit) {
  const Reference exact(x);
  const auto count = static_cast<long double>(x.layout.count());
  REQUIRE(found.size() == 2 * exact.mean.size());
  for (std::size_t c = 0; c < exact.mean.size(); ++c) {
    // Half data of a large mean may have no deviations at all.
    const long double deviation = std::sqrt(exact.m2[c] / count);
    const long double in_double = 4e-15L * (std::fabs(exact.mean[c]) + deviation);
    const long double mean_tolerance = 4 * unit * deviation + in_double;
    const long double m2_tolerance =
        count * deviation * (8 * unit * deviation + in_double) + count * in_double * in_double;
    REQUIRE(std::fabs(found[c] - exact.mean[c]) <= mean_tolerance);
    REQUIRE(std::fabs(found[exact.mean.size() + c] - exact.m2[c]) <= m2_tolerance);
  }
}

/// The moments of constant channels.
template <class T>
void check_constant(const Data<T>& x, const std::vector<double>& found) {
  const auto channels = static_cast<std::size_t>(x.layout.channels);
  REQUIRE(found.size() == 2 * channels);
  for (std::size_t c = 0; c < channels; ++c) {
    REQUIRE(found[c] == x.at(c * static_cast<std::size_t>(x.layout.inner)));
    REQUIRE(found[channels + c] == 0);
  }
}

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_OUTPUTS_H_

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "common/half.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace gluon_syncbn::tests {
namespace {

constexpr std::uint32_t kInfinity = 0x7c00;
constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();

/// What a finite half of this magnitude is worth, by the definition of the format. The code of
/// infinity gives 65536, the number that would come next.
double decoded(std::uint32_t magnitude) {
  const int exponent = static_cast<int>(magnitude >> 10);
  const double fraction = magnitude & 0x3ffu;
  return exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
}

/// The code nearest to `value`, among all codes; of two as near, the even one.
std::uint16_t nearest_half(float value) {
  static const std::vector<double> values = [] {
    std::vector<double> all;
    for (std::uint32_t magnitude = 0; magnitude <= kInfinity; ++magnitude) {
      all.push_back(decoded(magnitude));
    }
    return all;
  }();
  const std::uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const auto above = std::lower_bound(values.begin(), values.end(), magnitude);
  if (above == values.end()) return static_cast<std::uint16_t>(sign | kInfinity);
  auto code = static_cast<std::uint32_t>(above - values.begin());
  if (code > 0) {
    const double to_upper = values[code] - magnitude;
    const double to_lower = magnitude - values[code - 1];
    if (to_lower < to_upper || (to_lower == to_upper && code % 2 == 1)) --code;
  }
  return static_cast<std::uint16_t>(sign | code);
}

/// Whether to_half gives the nearest code for the value, its float neighbours and their negatives.
bool rounds_to_nearest(float value) {
  for (const float direction : {-kFloatInfinity, value, kFloatInfinity}) {
    const float neighbour = std::nextafter(value, direction);
    for (const float signed_value : {neighbour, -neighbour}) {
      if (to_half(signed_value).bits != nearest_half(signed_value)) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("half: every code converts to float exactly and back to itself") {
  for (std::uint32_t code = 0; code <= 0xffff; ++code) {
    const Half half{static_cast<std::uint16_t>(code)};
    const std::uint32_t magnitude = code & 0x7fffu;
    const float value = to_float(half);
    CAPTURE(code);
    REQUIRE(std::signbit(value) == (code >= 0x8000));
    if (magnitude > kInfinity) {
      REQUIRE(std::isnan(value));
      REQUIRE((float_to_bits(value) >> 13 & 0x3ffu) == (magnitude & 0x3ffu));
      REQUIRE((to_half(value).bits & 0xfe00u) == ((code & 0x8000u) | 0x7e00u));
    } else {
      const double expected = magnitude == kInfinity ? kFloatInfinity : decoded(magnitude);
      REQUIRE(std::fabs(static_cast<double>(value)) == expected);
      REQUIRE(to_half(value).bits == code);
    }
  }
}

TEST_CASE("half: floats at and around every code and every midpoint round to nearest even") {
  for (std::uint32_t magnitude = 0; magnitude < kInfinity; ++magnitude) {
    CAPTURE(magnitude);
    REQUIRE(rounds_to_nearest(static_cast<float>(decoded(magnitude))));
    const double midpoint = (decoded(magnitude) + decoded(magnitude + 1)) / 2;
    REQUIRE(static_cast<double>(static_cast<float>(midpoint)) == midpoint);
    REQUIRE(rounds_to_nearest(static_cast<float>(midpoint)));
  }
  CHECK(to_half(std::numeric_limits<float>::max()).bits == kInfinity);
  CHECK(to_half(-std::numeric_limits<float>::denorm_min()).bits == 0x8000);
}

TEST_CASE("half: random floats of every magnitude round to nearest even") {
  std::mt19937 generator(16);
  for (int i = 0; i < 200000; ++i) {
    const float value = bits_to_float(generator());
    if (std::isnan(value)) continue;
    CAPTURE(value);
    REQUIRE(to_half(value).bits == nearest_half(value));
    // Few of all floats lie in the range of halves: the same fraction, with exponents -30 to 17.
    int exponent;
    const float fraction = std::frexp(std::isinf(value) ? 1.0f : value, &exponent);
    const float near_half = std::ldexp(fraction, i % 48 - 30);
    CAPTURE(near_half);
    REQUIRE(to_half(near_half).bits == nearest_half(near_half));
  }
}

TEST_CASE("half: any NaN stays a NaN") {
  for (const std::uint32_t bits : {0x7f800001u, 0x7f801000u, 0x7fc00000u, 0x7fffffffu}) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const Half half = to_half(bits_to_float(sign | bits));
      CAPTURE(bits);
      CHECK((half.bits & 0x7fffu) > kInfinity);
      CHECK((half.bits & 0x8000u) == sign >> 16);
      CHECK(std::isnan(to_float(half)));
    }
  }
}

#ifdef __SSE__
// MXNet and libraries built with -ffast-math let threads treat subnormal floats as zero.
TEST_CASE("half: subnormals survive where subnormal floats do not") {
  constexpr unsigned kFlushToZero = 0x8000;
  constexpr unsigned kDenormalsAreZero = 0x0040;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kFlushToZero | kDenormalsAreZero);
  std::uint32_t wrong = 0;
  for (std::uint32_t magnitude = 1; magnitude < 0x400; ++magnitude) {
    const Half half{static_cast<std::uint16_t>(magnitude)};
    if (to_float(half) != static_cast<float>(magnitude) * 0x1p-24f) ++wrong;
    if (to_half(to_float(half)).bits != magnitude) ++wrong;
  }
  _mm_setcsr(before);
  CHECK(wrong == 0);
}
#endif

}  // namespace gluon_syncbn::tests

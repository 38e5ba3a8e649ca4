#include "scenarios/dtypes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>

namespace gluon_syncbn::scenarios {
namespace {

double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double fraction = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

/// The nearest finite one, from a table of all.
std::uint16_t nearest_half(double value) {
  static const std::map<double, std::uint16_t> halves = [] {
    std::map<double, std::uint16_t> all;
    for (std::uint16_t bits = 0; bits < 31 << 10; ++bits) all[half_value(bits)] = bits;
    return all;
  }();
  const double magnitude = std::abs(value);
  auto above = halves.lower_bound(magnitude);
  if (above == halves.end()) --above;
  auto nearest = above;
  if (above != halves.begin() && magnitude - std::prev(above)->first < above->first - magnitude) {
    nearest = std::prev(above);
  }
  return static_cast<std::uint16_t>(nearest->second | (value < 0 ? 1 << 15 : 0));
}

template <class T, class Convert>
std::vector<unsigned char> encode_as(const std::vector<double>& values, const Convert& convert) {
  std::vector<unsigned char> bytes(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T value = convert(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

template <class T, class Convert>
std::vector<double> decode_as(const std::vector<unsigned char>& bytes, const Convert& convert) {
  std::vector<double> values(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = convert(value);
  }
  return values;
}

}  // namespace

std::vector<unsigned char> encode(const std::vector<double>& values, int dtype) {
  switch (dtype) {
    case host::kFloat32:
      return encode_as<float>(values, [](double value) { return static_cast<float>(value); });
    case host::kFloat64:
      return encode_as<double>(values, [](double value) { return value; });
    case host::kFloat16:
      return encode_as<std::uint16_t>(values, nearest_half);
    case host::kInt32:
      return encode_as<std::int32_t>(
          values, [](double value) { return static_cast<std::int32_t>(std::lround(value)); });
    default:
      throw host::Error("unknown dtype");
  }
}

std::vector<double> decode(const std::vector<unsigned char>& bytes, int dtype) {
  const auto same = [](auto value) { return static_cast<double>(value); };
  switch (dtype) {
    case host::kFloat32:
      return decode_as<float>(bytes, same);
    case host::kFloat64:
      return decode_as<double>(bytes, same);
    case host::kFloat16:
      return decode_as<std::uint16_t>(bytes, half_value);
    case host::kInt32:
      return decode_as<std::int32_t>(bytes, same);
    default:
      throw host::Error("unknown dtype");
  }
}

}  // namespace gluon_syncbn::scenarios

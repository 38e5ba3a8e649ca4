#pragma once

#include <cstdint>
#include <cstring>

namespace gluon_syncbn {

/// The 16 bits of an IEEE 754 binary16 number.
struct Half {
  std::uint16_t bits = 0;
};

inline float bits_to_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline std::uint32_t float_to_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

/// Every Half has an exact float.
inline float to_float(Half half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = half.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity, or NaN with its payload
    return bits_to_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  }
  if (magnitude < 0x0400u) {
    // A subnormal Half is a multiple of 2^-24, as is the fraction of a float in [0.5, 1). This way
    // needs no subnormal float, which the thread may be set to treat as zero.
    const float value = bits_to_float(0x3f000000u | magnitude) - 0.5f;
    return bits_to_float(sign | float_to_bits(value));
  }
  return bits_to_float(sign | ((magnitude << 13) + 0x38000000u));
}

/// Rounds to the nearest Half, and ties to even. Too large a value becomes infinity.
inline Half to_half(float value) {
  const std::uint32_t bits = float_to_bits(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {
    // The result is a multiple of 2^-24. Adding 0.5 makes the processor round at exactly that bit.
    const float shifted = bits_to_float(magnitude) + 0.5f;
    return {static_cast<std::uint16_t>(sign | (float_to_bits(shifted) - 0x3f000000u))};
  }
  const std::uint32_t odd = magnitude >> 13 & 1u;
  const std::uint32_t rounded = magnitude - 0x38000000u + 0xfffu + odd;
  return {static_cast<std::uint16_t>(sign | rounded >> 13)};
}

}  // namespace gluon_syncbn

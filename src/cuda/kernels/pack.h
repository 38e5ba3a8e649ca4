#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/half.h"

namespace gluon_syncbn::cuda {

template <class T>
T from_real(Real<T> value) {
  return value;
}
template <>
inline Half from_real<Half>(float value) {
#ifdef __CUDA_ARCH__
  Half half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(value));
  return half;
#else
  return to_half(value);
#endif
}

/// The number of elements of an access, which has 16 bytes.
template <class T>
constexpr int kWidest = 16 / static_cast<int>(sizeof(T));

/// The elements of an access in registers.
template <class T>
struct alignas(16) Pack {
  T elements[kWidest<T>];

  T get(int i) const { return elements[i]; }
  Real<T> real(int i) const { return elements[i]; }
  void set(int i, T element) { elements[i] = element; }
};
/// Has words. Otherwise the compiler moves each element to a register of its own as soon as it is
/// loaded, and so waits for one load before the next one.
template <>
struct alignas(16) [[gnu::may_alias]] Pack<Half> {
  std::uint32_t words[4];

  Half get(int i) const {
    Half half;
    half.bits = static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16));
    return half;
  }
  /// Without a shift. Code that two branches share would otherwise keep a register for each
  /// element.
  float real(int i) const {
#ifdef __CUDA_ARCH__
    float value;
    if (i % 2 == 0) {
      asm("{ .reg .f16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }"
          : "=f"(value)
          : "r"(words[i / 2]));
    } else {
      asm("{ .reg .f16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high; }"
          : "=f"(value)
          : "r"(words[i / 2]));
    }
    return value;
#else
    return to_float(get(i));
#endif
  }
  void set(int i, Half element) {
    words[i / 2] &= 0xffff0000u >> (i % 2 * 16);
    words[i / 2] |= std::uint32_t{element.bits} << (i % 2 * 16);
  }
};

}  // namespace gluon_syncbn::cuda

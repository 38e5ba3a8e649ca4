#pragma once

// The part of the standard library that the kernels use. NVRTC has no standard library, and finds
// this file under the name of each of its headers (cmake/kernels.cmake).

#define HUGE_VAL __longlong_as_double(0x7ff0000000000000)

namespace std {

using size_t = unsigned long;
using uintptr_t = unsigned long;
using int32_t = int;
using int64_t = long;
using uint16_t = unsigned short;
using uint32_t = unsigned;
using uint64_t = unsigned long;

template <bool, class T, class>
struct conditional {
  using type = T;
};
template <class T, class F>
struct conditional<false, T, F> {
  using type = F;
};
template <bool kCondition, class T, class F>
using conditional_t = typename conditional<kCondition, T, F>::type;

/// Of values and references only.
template <class T>
struct decay {
  using type = T;
};
template <class T>
struct decay<const T> : decay<T> {};
template <class T>
struct decay<T&> : decay<T> {};
template <class T>
using decay_t = typename decay<T>::type;

template <class, class>
constexpr bool is_same_v = false;
template <class T>
constexpr bool is_same_v<T, T> = true;

template <class T>
struct numeric_limits;
template <>
struct numeric_limits<float> {
  static constexpr int digits = 24;
  static constexpr float min() { return 0x1p-126f; }
};
template <>
struct numeric_limits<double> {
  static constexpr int digits = 53;
  static constexpr double min() { return 0x1p-1022; }
};

using ::exp;
using ::expm1;
using ::fabs;
using ::fma;
using ::log1p;
using ::memcpy;
using ::sqrt;

class string;  // The headers declare functions of the host that return it.

}  // namespace std

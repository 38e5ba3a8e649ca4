// Vectors of an instruction set, and how to load and store them. They are the vector types of GCC
// and Clang, so that this source determines the order of all sums. Plain loops are as fast for
// elementwise kernels of float. But GCC 12 does not vectorize the conversions of Half, and two
// forms would be more code.

#pragma once

#include <cstdint>

#include "common/inline.h"
#include "cpu/simd/isa.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

#define GLUON_SYNCBN_INLINED __attribute__((always_inline))  // for lambdas, after the parameters
#define GLUON_SYNCBN_CALLED __attribute__((noinline))

namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA {
namespace {

constexpr std::int64_t kBytes = GLUON_SYNCBN_VECTOR_BYTES;
constexpr std::int64_t kDoubles = kBytes / 8;
constexpr std::int64_t kLineBytes = 64;  // of the caches

typedef double Doubles __attribute__((vector_size(kBytes)));
typedef float Floats __attribute__((vector_size(kBytes)));
// Vectors of one element, for the elements after the last whole vector. Only the first lane counts.
// GCC computes a vector of 4 or 8 bytes in general registers: with ReLU, images of 5x5 pixels took
// 2.1 of the time on AVX-512. It computes a number with branches: 7x7 took 1.2.
typedef double OneDouble __attribute__((vector_size(kBytes / 2)));
typedef float OneFloat __attribute__((vector_size(kBytes / 2)));
GLUON_SYNCBN_INLINE OneDouble one_like(Doubles) { return OneDouble{}; }
GLUON_SYNCBN_INLINE OneFloat one_like(Floats) { return OneFloat{}; }

GLUON_SYNCBN_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

template <class V, class T>
GLUON_SYNCBN_INLINE V load_bytes(const T* from) {
  V vector;
  __builtin_memcpy(&vector, from, sizeof(vector));
  return vector;
}

/// Starts to read a cache line into the second-level cache.
template <class T>
GLUON_SYNCBN_INLINE void fetch(const T* from) {
  __builtin_prefetch(from, 0, 2);
}

/// The vector type in which elements of T are computed.
template <class T>
struct Vector {
  using type = Floats;
};
template <>
struct Vector<double> {
  using type = Doubles;
};
template <class T>
using Reals = typename Vector<T>::type;
template <class T>
constexpr std::int64_t kReals = kBytes / static_cast<std::int64_t>(sizeof(Real<T>));

/// Converts one element.
GLUON_SYNCBN_INLINE float real(float number) { return number; }
GLUON_SYNCBN_INLINE double real(double number) { return number; }
#ifdef __F16C__
GLUON_SYNCBN_INLINE float real(Half number) { return _cvtsh_ss(number.bits); }
GLUON_SYNCBN_INLINE void store(Half* to, OneFloat v) {
  to->bits = _cvtss_sh(v[0], _MM_FROUND_TO_NEAREST_INT);
}
#else
GLUON_SYNCBN_INLINE float real(Half number) { return to_float(number); }
GLUON_SYNCBN_INLINE void store(Half* to, OneFloat v) { *to = to_half(v[0]); }
#endif

// `like` is any vector of the type of the result.

/// Returns a vector in which every lane is `value`.
template <class V>
GLUON_SYNCBN_INLINE V broadcast(V like, double value) {
  return V{} + static_cast<decltype(+like[0])>(value);
}

/// The number of lanes that count.
template <class V>
constexpr std::int64_t lanes_of() {
  return static_cast<std::int64_t>(sizeof(V)) < kBytes
             ? 1
             : static_cast<std::int64_t>(sizeof(V) / sizeof(V{}[0]));
}

/// Loads one element for each lane that counts.
GLUON_SYNCBN_INLINE Floats load(Floats, const float* from) { return load_bytes<Floats>(from); }
GLUON_SYNCBN_INLINE Doubles load(Doubles, const double* from) { return load_bytes<Doubles>(from); }
template <class T>
GLUON_SYNCBN_INLINE OneFloat load(OneFloat, const T* from) {
  return OneFloat{real(*from)};
}
template <class T>
GLUON_SYNCBN_INLINE OneDouble load(OneDouble, const T* from) {
  return OneDouble{real(*from)};
}
GLUON_SYNCBN_INLINE void store(float* to, Floats v) { __builtin_memcpy(to, &v, sizeof(v)); }
GLUON_SYNCBN_INLINE void store(double* to, Doubles v) { __builtin_memcpy(to, &v, sizeof(v)); }
GLUON_SYNCBN_INLINE void store(float* to, OneFloat v) { *to = v[0]; }
GLUON_SYNCBN_INLINE void store(double* to, OneDouble v) { *to = v[0]; }

// The functions with masks compute all lanes here, as those without masks would. GCC 12 warns of an
// undefined value in the latter.
#if defined(__AVX512F__)
GLUON_SYNCBN_INLINE Doubles widen(__m256 v) { return (Doubles)_mm512_maskz_cvtps_pd(0xff, v); }
GLUON_SYNCBN_INLINE Doubles load(Doubles, const float* from) {
  return widen(_mm256_loadu_ps(from));
}
GLUON_SYNCBN_INLINE Floats load(Floats, const Half* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return (Floats)_mm512_maskz_cvtph_ps(0xffff, halves);
}
GLUON_SYNCBN_INLINE __m256i halves(Floats v) {
  return _mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
GLUON_SYNCBN_INLINE void store(Half* to, Floats v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves(v));
}
GLUON_SYNCBN_INLINE Doubles load(Doubles, const Half* from) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return widen(_mm256_cvtph_ps(halves));
}
GLUON_SYNCBN_INLINE void stream(float* to, Floats v) { _mm512_stream_ps(to, (__m512)v); }
GLUON_SYNCBN_INLINE void stream(double* to, Doubles v) { _mm512_stream_pd(to, (__m512d)v); }
GLUON_SYNCBN_INLINE void stream(Half* to, Floats v) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), halves(v));
}
#elif defined(__AVX2__)
GLUON_SYNCBN_INLINE Doubles widen(__m128 v) { return (Doubles)_mm256_cvtps_pd(v); }
GLUON_SYNCBN_INLINE Doubles load(Doubles, const float* from) { return widen(_mm_loadu_ps(from)); }
GLUON_SYNCBN_INLINE Floats load(Floats, const Half* from) {
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
GLUON_SYNCBN_INLINE __m128i halves(Floats v) {
  return _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
}
GLUON_SYNCBN_INLINE void store(Half* to, Floats v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves(v));
}
GLUON_SYNCBN_INLINE Doubles load(Doubles, const Half* from) {
  const __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return widen(_mm_cvtph_ps(halves));
}
GLUON_SYNCBN_INLINE void stream(float* to, Floats v) { _mm256_stream_ps(to, (__m256)v); }
GLUON_SYNCBN_INLINE void stream(double* to, Doubles v) { _mm256_stream_pd(to, (__m256d)v); }
GLUON_SYNCBN_INLINE void stream(Half* to, Floats v) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), halves(v));
}
#else
GLUON_SYNCBN_INLINE Doubles load(Doubles, const float* from) { return Doubles{from[0], from[1]}; }
// Only the baseline may use the inline functions of half.h (see isa.h). They are long, so loops
// call them.
GLUON_SYNCBN_CALLED Floats load(Floats, const Half* from) {
  Floats v{};
  for (std::int64_t i = 0; i < kReals<Half>; ++i) v[i] = to_float(from[i]);
  return v;
}
GLUON_SYNCBN_CALLED void store(Half* to, Floats v) {
  for (std::int64_t i = 0; i < kReals<Half>; ++i) to[i] = to_half(v[i]);
}
GLUON_SYNCBN_CALLED Doubles load(Doubles, const Half* from) {
  Doubles v{};
  for (std::int64_t i = 0; i < kDoubles; ++i) v[i] = to_float(from[i]);
  return v;
}
#ifdef __SSE2__
GLUON_SYNCBN_INLINE void stream(float* to, Floats v) { _mm_stream_ps(to, (__m128)v); }
GLUON_SYNCBN_INLINE void stream(double* to, Doubles v) { _mm_stream_pd(to, (__m128d)v); }
#else
GLUON_SYNCBN_INLINE void stream(float* to, Floats v) { store(to, v); }
GLUON_SYNCBN_INLINE void stream(double* to, Doubles v) { store(to, v); }
#endif
GLUON_SYNCBN_INLINE void stream(Half* to, Floats v) { store(to, v); }
#endif

/// Makes streamed elements visible to threads that synchronize with this thread later.
GLUON_SYNCBN_INLINE void end_of_stream(StoreMode how) {
#ifdef __SSE2__
  if (how == StoreMode::kStream) _mm_sfence();
#else
  static_cast<void>(how);
#endif
}

/// Adds the lower and the upper half of the lanes again and again. So the order of the sum does not
/// depend on the compiler.
GLUON_SYNCBN_INLINE double sum_of_lanes(Doubles v) {
  double lanes[kDoubles];
  store(lanes, v);
  for (std::int64_t half = kDoubles / 2; half > 0; half /= 2) {
    for (std::int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

/// Two vectors that a loop adds to two sums.
template <class V>
struct Terms {
  V first;
  V second;

  GLUON_SYNCBN_INLINE void operator+=(const Terms& more) {
    first += more.first;
    second += more.second;
  }
};

}  // namespace
}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA

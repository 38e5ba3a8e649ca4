// Vectors of an instruction set, and how to load and store them. They are the vector types of GCC
// and Clang, so that this source determines the order of all sums. Plain loops are as fast for
// elementwise kernels of float. But GCC 12 does not vectorize the conversions of Half, and two
// forms would be more code.

#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/simd/isa.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

#define GLUON_SYNCBN_INLINED __attribute__((always_inline))  // for lambdas, after the parameters
#define GLUON_SYNCBN_INLINE inline GLUON_SYNCBN_INLINED
#define GLUON_SYNCBN_CALLED __attribute__((noinline))

namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA {
namespace {

constexpr std::int64_t kBytes = GLUON_SYNCBN_VECTOR_BYTES;
constexpr std::int64_t kDoubles = kBytes / 8;
constexpr std::int64_t kLineBytes = 64;  // of the caches

typedef double Doubles __attribute__((vector_size(kBytes)));
typedef float Floats __attribute__((vector_size(kBytes)));
typedef std::int64_t Indices __attribute__((vector_size(kBytes)));

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

template <class R>
GLUON_SYNCBN_INLINE auto broadcast(R value) {
  return Reals<R>{} + value;
}

/// Returns a vector of the argument's type in which every lane is `value`.
GLUON_SYNCBN_INLINE Floats of_lanes(Floats, double value) {
  return broadcast(static_cast<float>(value));
}
GLUON_SYNCBN_INLINE Doubles of_lanes(Doubles, double value) { return broadcast(value); }

template <class V>
constexpr std::int64_t lanes_of() {
  return kBytes / static_cast<std::int64_t>(sizeof(V{}[0]));
}

GLUON_SYNCBN_INLINE Floats load(const float* from) { return load_bytes<Floats>(from); }
GLUON_SYNCBN_INLINE Doubles load(const double* from) { return load_bytes<Doubles>(from); }
GLUON_SYNCBN_INLINE void store(float* to, Floats v) { __builtin_memcpy(to, &v, sizeof(v)); }
GLUON_SYNCBN_INLINE void store(double* to, Doubles v) { __builtin_memcpy(to, &v, sizeof(v)); }

/// Loads as many elements as a vector has doubles.
GLUON_SYNCBN_INLINE Doubles load_wide(const double* from) { return load(from); }
// The functions with masks compute all lanes here, as those without masks would. GCC 12 warns of an
// undefined value in the latter.
#if defined(__AVX512F__)
GLUON_SYNCBN_INLINE Doubles widen(__m256 v) { return (Doubles)_mm512_maskz_cvtps_pd(0xff, v); }
GLUON_SYNCBN_INLINE Doubles load_wide(const float* from) { return widen(_mm256_loadu_ps(from)); }
GLUON_SYNCBN_INLINE Floats load(const Half* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return (Floats)_mm512_maskz_cvtph_ps(0xffff, halves);
}
GLUON_SYNCBN_INLINE __m256i halves(Floats v) {
  return _mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
GLUON_SYNCBN_INLINE void store(Half* to, Floats v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves(v));
}
GLUON_SYNCBN_INLINE Doubles load_wide(const Half* from) {
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
GLUON_SYNCBN_INLINE Doubles load_wide(const float* from) { return widen(_mm_loadu_ps(from)); }
GLUON_SYNCBN_INLINE Floats load(const Half* from) {
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
GLUON_SYNCBN_INLINE __m128i halves(Floats v) {
  return _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
}
GLUON_SYNCBN_INLINE void store(Half* to, Floats v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves(v));
}
GLUON_SYNCBN_INLINE Doubles load_wide(const Half* from) {
  const __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return widen(_mm_cvtph_ps(halves));
}
GLUON_SYNCBN_INLINE void stream(float* to, Floats v) { _mm256_stream_ps(to, (__m256)v); }
GLUON_SYNCBN_INLINE void stream(double* to, Doubles v) { _mm256_stream_pd(to, (__m256d)v); }
GLUON_SYNCBN_INLINE void stream(Half* to, Floats v) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), halves(v));
}
#else
GLUON_SYNCBN_INLINE Doubles load_wide(const float* from) { return Doubles{from[0], from[1]}; }
// Only the baseline may use the inline functions of half.h (see isa.h). They are long, so loops
// call them.
GLUON_SYNCBN_CALLED Floats load(const Half* from) {
  Floats v{};
  for (std::int64_t i = 0; i < kReals<Half>; ++i) v[i] = to_float(from[i]);
  return v;
}
GLUON_SYNCBN_CALLED void store(Half* to, Floats v) {
  for (std::int64_t i = 0; i < kReals<Half>; ++i) to[i] = to_half(v[i]);
}
GLUON_SYNCBN_CALLED Doubles load_wide(const Half* from) {
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

template <class E>
GLUON_SYNCBN_INLINE void copy(const E* from, std::int64_t number, E* to) {
  __builtin_memcpy(to, from, static_cast<std::size_t>(number) * sizeof(E));
}

/// Stores the first n lanes of a vector.
template <class T>
GLUON_SYNCBN_INLINE void store_first(T* to, Reals<T> v, std::int64_t n) {
  T elements[kReals<T>];
  store(elements, v);
  copy(elements, n, to);
}

/// A copy of an array that is shorter than a vector, with zeros after it. Converts to null if the
/// array is null.
template <class E>
struct Padded {
  E elements[kReals<E>] = {};
  bool is_null;

  Padded(const E* from, std::int64_t number) : is_null(!from) {
    if (from) copy(from, number, elements);
  }
  operator const E*() const { return is_null ? nullptr : elements; }
};

/// Returns v with zeros in all lanes but the last n.
GLUON_SYNCBN_INLINE Doubles last_lanes(Doubles v, std::int64_t n) {
  Indices index{};
  for (std::int64_t i = 0; i < kDoubles; ++i) index[i] = i;
  return index >= (Indices{} + (kDoubles - n)) ? v : Doubles{};
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
struct Terms {
  Doubles first;
  Doubles second;
};

}  // namespace
}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA

// The source of the other files here, each of which sets
//   GLUON_SYNCBN_ISA            the namespace of its kernels
//   GLUON_SYNCBN_VECTOR_BYTES   the width of its registers
// and is compiled for its instruction set (CMakeLists.txt). Everything here has internal linkage
// but for one function; see isa.h for why. For the same reason the standard library stays away.
//
// Vectors are those of the compiler (GCC and Clang), so that the results depend on this source and
// not on what a compiler chooses to vectorize.

#ifndef GLUON_SYNCBN_CPU_SIMD_LOOPS_H_
#define GLUON_SYNCBN_CPU_SIMD_LOOPS_H_

#include <cstddef>
#include <cstdint>

#include "cpu/simd/isa.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

#define GLUON_SYNCBN_INLINED __attribute__((always_inline))  // behind the parameters of a lambda
#define GLUON_SYNCBN_INLINE inline GLUON_SYNCBN_INLINED

namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA {
namespace {

constexpr std::int64_t kBytes = GLUON_SYNCBN_VECTOR_BYTES;
constexpr std::int64_t kDoubles = kBytes / 8;

typedef double Doubles __attribute__((vector_size(kBytes)));
typedef float Floats __attribute__((vector_size(kBytes)));
typedef std::int64_t Indices __attribute__((vector_size(kBytes)));

/// Independent sums, so that additions need not wait for each other.
constexpr std::int64_t kChains = 4;
/// Elements whose deviations from one pivot are summed before the result is merged into the
/// statistics of their channel: 128 in each lane of a sum, so that little is rounded. They fit the
/// first-level cache, should a second look at them be necessary.
constexpr std::int64_t kBlock = 128 * kChains * kDoubles;
/// The same for matrices: rows of a block, and columns that are looked at together.
constexpr std::int64_t kBlockRows = 128;
constexpr std::int64_t kTile = 512;
/// Rows that are added up in registers before they are added to the sums in memory, and how far
/// ahead of them rows are fetched.
constexpr std::int64_t kRowGroup = 8;
constexpr std::int64_t kRowsAhead = 32;
constexpr std::int64_t kLineBytes = 64;

GLUON_SYNCBN_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// Vectors and memory.

template <class V, class T>
GLUON_SYNCBN_INLINE V load_bytes(const T* from) {
  V vector;
  __builtin_memcpy(&vector, from, sizeof(vector));
  return vector;
}

/// Into the second-level cache.
template <class T>
GLUON_SYNCBN_INLINE void fetch(const T* from) {
  __builtin_prefetch(from, 0, 2);
}

/// Vectors of the arithmetic of T.
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

/// As many of `value` as v has lanes.
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

/// As many elements as there are doubles in a vector.
GLUON_SYNCBN_INLINE Doubles load_wide(const double* from) { return load(from); }
// Where all lanes are set, those with masks are the same as those without, whose undefined values
// GCC 12 warns of.
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
// This is the one file that may use the inline functions of half.h. They are long, and so are
// called rather than copied into every loop.
#define GLUON_SYNCBN_CALLED __attribute__((noinline))
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

/// Makes streamed elements visible to whoever synchronizes with this thread afterwards.
GLUON_SYNCBN_INLINE void end_of_stream() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

/// The first n elements, where there are no more. The other lanes are zero.
template <class T>
struct Partial {
  T elements[kBytes / sizeof(Real<T>)];

  GLUON_SYNCBN_INLINE Partial(const T* from, std::int64_t n) : elements{} {
    __builtin_memcpy(elements, from, static_cast<std::size_t>(n) * sizeof(T));
  }
};

template <class T>
GLUON_SYNCBN_INLINE Reals<T> load(const T* from, std::int64_t n) {
  return load(Partial<T>(from, n).elements);
}

template <class T>
GLUON_SYNCBN_INLINE Doubles load_wide(const T* from, std::int64_t n) {
  return load_wide(Partial<T>(from, n).elements);
}

template <class T>
GLUON_SYNCBN_INLINE void store(T* to, Reals<T> v, std::int64_t n) {
  T elements[kBytes / sizeof(Real<T>)];
  store(elements, v);
  __builtin_memcpy(to, elements, static_cast<std::size_t>(n) * sizeof(T));
}

GLUON_SYNCBN_INLINE Doubles last_lanes(Doubles v, std::int64_t n) {
  Indices index{};
  for (std::int64_t i = 0; i < kDoubles; ++i) index[i] = i;
  return index >= (Indices{} + (kDoubles - n)) ? v : Doubles{};
}

/// In pairs of halves, whatever the compiler.
GLUON_SYNCBN_INLINE double sum_of_lanes(Doubles v) {
  double lanes[kDoubles];
  store(lanes, v);
  for (std::int64_t half = kDoubles / 2; half > 0; half /= 2) {
    for (std::int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

/// Statistics of one channel, or of a vector of columns, in which parts are merged by Chan's
/// update (see moments.h).
template <class V>
GLUON_SYNCBN_INLINE void merge(double count_a, V* mean_a, V* m2_a, double count_b, V mean_b,
                               V m2_b) {
  const double weight_b = count_b / (count_a + count_b);
  const V delta = mean_b - *mean_a;
  *mean_a += delta * weight_b;
  *m2_a += m2_b + delta * delta * (weight_b * count_a);
}

/// n numbers by the sums of their deviations d from a pivot.
///
/// M2 is sum(d^2) - sum(d)^2 / n, which is as good as two passes while the pivot is within a
/// standard deviation of the mean; then the difference loses no more than one bit. Where it is not,
/// a second look with the mean as pivot settles it.
template <class V>
struct Deviations {
  V pivot;
  V sum;
  V squares;

  /// `share` is 1 / n: dividing once for all columns saves time.
  GLUON_SYNCBN_INLINE V correction(double share) const { return sum * sum * share; }
  GLUON_SYNCBN_INLINE V mean(double share) const { return pivot + sum * share; }
  GLUON_SYNCBN_INLINE V m2(double share) const {
    const V difference = squares - correction(share);
    return difference < V{} ? V{} : difference;  // a NaN stays
  }
};

GLUON_SYNCBN_INLINE bool is_far(const Deviations<double>& d, double share) {
  return 2 * d.correction(share) > d.squares;
}

GLUON_SYNCBN_INLINE bool is_far(const Deviations<Doubles>& d, double share) {
  const Indices far = 2 * d.correction(share) > d.squares;
  std::int64_t any = 0;
  for (std::int64_t i = 0; i < kDoubles; ++i) any |= far[i];
  return any != 0;
}

/// Activations. `value` is what comes out for z, `gradient` what dy is with respect to z, told by
/// z, and `gradient_by_output` the same told by what came out. `inverse` is z for that; elements of
/// T hold it.

struct Identity {
  template <class V>
  GLUON_SYNCBN_INLINE V value(V z) const {
    return z;
  }
  template <class V>
  GLUON_SYNCBN_INLINE V gradient_by_output(V dy, V /*y*/) const {
    return dy;
  }
  template <class T, class V>
  GLUON_SYNCBN_INLINE V inverse(V y) const {
    return y;
  }
};

/// ReLU, leaky or not. Where the slope is 0, what lies below 0 does not come through even if it is
/// not finite.
struct Rectifier {
  double slope;

  template <class V>
  GLUON_SYNCBN_INLINE V value(V z) const {
    return z < 0 ? below(z) : z;  // a NaN stays one
  }
  template <class V>
  GLUON_SYNCBN_INLINE V gradient(V dy, V z) const {
    return z > 0 ? dy : below(dy);
  }
  template <class V>
  GLUON_SYNCBN_INLINE V gradient_by_output(V dy, V y) const {
    return gradient(dy, y);
  }
  template <class T, class V>
  GLUON_SYNCBN_INLINE V inverse(V y) const {
    return y < 0 ? y / of_lanes(y, slope) : y;
  }

 private:
  template <class V>
  GLUON_SYNCBN_INLINE V below(V v) const {
    using Bits = decltype(v < v);
    const Bits mask = Bits{} - (slope != 0 ? 1 : 0);
    return (V)((Bits)(of_lanes(v, slope) * v) & mask);
  }
};

GLUON_SYNCBN_INLINE float exp_of(float x) { return __builtin_expf(x); }
GLUON_SYNCBN_INLINE double exp_of(double x) { return __builtin_exp(x); }
GLUON_SYNCBN_INLINE float expm1_of(float x) { return __builtin_expm1f(x); }
GLUON_SYNCBN_INLINE double expm1_of(double x) { return __builtin_expm1(x); }
GLUON_SYNCBN_INLINE float log1p_of(float x) { return __builtin_log1pf(x); }
GLUON_SYNCBN_INLINE double log1p_of(double x) { return __builtin_log1p(x); }

struct Elu {
  double slope;

  template <class V>
  GLUON_SYNCBN_INLINE V value(V z) const {
    V below = z > 0 ? V{} : z;
    for (std::int64_t i = 0; i < lanes_of<V>(); ++i) below[i] = expm1_of(below[i]);
    return z > 0 ? z : of_lanes(z, slope) * below;
  }
  template <class V>
  GLUON_SYNCBN_INLINE V gradient(V dy, V z) const {
    V below = z > 0 ? V{} : z;
    for (std::int64_t i = 0; i < lanes_of<V>(); ++i) below[i] = exp_of(below[i]);
    return z > 0 ? dy : dy * (of_lanes(z, slope) * below);
  }
  template <class V>
  GLUON_SYNCBN_INLINE V gradient_by_output(V dy, V y) const {
    return y > 0 ? dy : dy * (y + of_lanes(y, slope));
  }
  template <class T, class V>
  GLUON_SYNCBN_INLINE V inverse(V y) const {
    const V ratio = y > 0 ? V{} : y / of_lanes(y, slope);
    V below = ratio < -1 ? of_lanes(y, -1) : ratio;
    for (std::int64_t i = 0; i < lanes_of<V>(); ++i) below[i] = log1p_of(below[i]);
    const V lowest = of_lanes(y, kSaturation<T>);
    return y > 0 ? y : below < lowest ? lowest : below;  // a NaN stays one
  }
};

/// Calls visit(activation) with a type of its own for each. Identity is a matter of the caller.
template <class Visit>
GLUON_SYNCBN_INLINE void with_activation(const Activation& activation, const Visit& visit) {
  if (activation.type == ActType::kElu) return visit(Elu{activation.slope});
  return visit(Rectifier{activation.type == ActType::kNone ? 1 : activation.slope});
}

/// Gates turn dy into dz = dy * act'(z), and know x - center. Each is made by at(load), where
/// load(array) gives the numbers of the channels in question.

struct OfInput {
  template <class V>
  GLUON_SYNCBN_INLINE V centered(V x, V center) const {
    return x - center;
  }
};

struct NoGate : OfInput {
  static constexpr int kInputs = 2;  // dy and x
  template <class Load>
  GLUON_SYNCBN_INLINE NoGate at(const Load&) const {
    return {};
  }
  template <class V>
  GLUON_SYNCBN_INLINE V operator()(V dy, V /*centered*/, V /*x*/) const {
    return dy;
  }
};

template <class V, class Act>
struct GateOfInput : OfInput {
  V scale;
  V shift;
  Act act;

  GLUON_SYNCBN_INLINE GateOfInput(V with_scale, V with_shift, Act with_act)
      : scale(with_scale), shift(with_shift), act(with_act) {}

  GLUON_SYNCBN_INLINE V operator()(V dy, V centered, V /*x*/) const {
    return act.gradient(dy, centered * scale + shift);
  }
};

template <class R, class Act>
struct GatesOfInput {
  static constexpr int kInputs = 2;
  const R* scale;
  const R* shift;
  Act act;

  template <class Load>
  GLUON_SYNCBN_INLINE auto at(const Load& load) const {
    return GateOfInput<decltype(load(scale)), Act>(load(scale), load(shift), act);
  }
};

template <class Act>
struct GateOfOutput : OfInput {
  static constexpr int kInputs = 3;  // dy, x and y
  Act act;

  GLUON_SYNCBN_INLINE explicit GateOfOutput(Act with_act) : act(with_act) {}

  template <class Load>
  GLUON_SYNCBN_INLINE GateOfOutput at(const Load&) const {
    return *this;
  }
  template <class V>
  GLUON_SYNCBN_INLINE V operator()(V dy, V /*centered*/, V /*x*/, V y) const {
    return act.gradient_by_output(dy, y);
  }
};

/// In place: the output tells everything.
template <class T, class V, class Act>
struct Inverse {
  V scale;
  V shift;
  Act act;

  GLUON_SYNCBN_INLINE V centered(V y, V /*center*/) const {
    return (act.template inverse<T>(y) - shift) * scale;
  }
  GLUON_SYNCBN_INLINE V operator()(V dy, V /*centered*/, V y) const {
    return act.gradient_by_output(dy, y);
  }
};

template <class T, class R, class Act>
struct Inverses {
  static constexpr int kInputs = 2;  // dy and y
  const R* scale;
  const R* shift;
  Act act;

  template <class Load>
  GLUON_SYNCBN_INLINE auto at(const Load& load) const {
    return Inverse<T, decltype(load(scale)), Act>{load(scale), load(shift), act};
  }
};

/// Calls visit(gates) with those of an activation, told by the output if there is one.
template <class T, class R, class Visit>
GLUON_SYNCBN_INLINE void with_gates(const Activation& activation, const T* x, const T* y,
                                    const NormalizationArrays<R>& p, const Visit& visit) {
  if (activation.type == ActType::kNone) {
    if (x) return visit(NoGate());
    return visit(Inverses<T, R, Identity>{p.scale, p.shift, Identity()});
  }
  with_activation(activation, [&](auto act) GLUON_SYNCBN_INLINED {
    using Act = decltype(act);
    if (!x) return visit(Inverses<T, R, Act>{p.scale, p.shift, act});
    if (y) return visit(GateOfOutput<Act>(act));
    visit(GatesOfInput<R, Act>{p.scale, p.shift, act});
  });
}

/// Arrays of which elements at the same place belong together.
template <class T, int kNumber>
struct Inputs {
  const T* arrays[kNumber];

  GLUON_SYNCBN_INLINE Inputs operator+(std::int64_t offset) const {
    Inputs moved{};
    for (int i = 0; i < kNumber; ++i) moved.arrays[i] = arrays[i] + offset;
    return moved;
  }

  /// function(load(array) for each).
  template <class Function, class Load>
  GLUON_SYNCBN_INLINE auto apply(const Function& function, const Load& load) const {
    if constexpr (kNumber == 1) {
      return function(load(arrays[0]));
    } else if constexpr (kNumber == 2) {
      return function(load(arrays[0]), load(arrays[1]));
    } else {
      return function(load(arrays[0]), load(arrays[1]), load(arrays[2]));
    }
  }
};

/// Those that a gate needs.
template <class Gates, class T>
GLUON_SYNCBN_INLINE Inputs<T, Gates::kInputs> inputs_of(const T* dy, const T* x, const T* y) {
  if constexpr (Gates::kInputs == 2) {
    return {{dy, x ? x : y}};
  } else {
    return {{dy, x, y}};
  }
}

struct Terms {
  Doubles first;
  Doubles second;
};

/// How a vector is read and which of its lanes count: all of them; the last n; or the first n,
/// where there are no more elements to read.
struct AllLanes {
  template <class T>
  GLUON_SYNCBN_INLINE Doubles operator()(const T* from) const {
    return load_wide(from);
  }
  GLUON_SYNCBN_INLINE Terms count(Terms terms) const { return terms; }
};
struct LastLanes : AllLanes {
  std::int64_t n;
  GLUON_SYNCBN_INLINE explicit LastLanes(std::int64_t number) : n(number) {}
  GLUON_SYNCBN_INLINE Terms count(Terms terms) const {
    return {last_lanes(terms.first, n), last_lanes(terms.second, n)};
  }
};
struct FirstLanes {
  std::int64_t n;
  template <class T>
  GLUON_SYNCBN_INLINE Doubles operator()(const T* from) const {
    return load_wide(from, n);
  }
  GLUON_SYNCBN_INLINE Terms count(Terms terms) const { return terms; }
};

/// Long runs.

/// Part of one channel: runs of equal length, at least a vector, at equal distances.
struct Block {
  std::int64_t begin;
  std::int64_t length;
  std::int64_t runs;
  std::int64_t distance;

  GLUON_SYNCBN_INLINE double count() const { return static_cast<double>(runs * length); }
};

/// Calls visit(block) for all blocks of a channel in a fixed order: several runs where they are
/// short, pieces of a run where they are long.
template <class Visit>
GLUON_SYNCBN_INLINE void for_each_block(const Layout& layout, std::int64_t channel,
                                        const Visit& visit) {
  const std::int64_t distance = layout.channels * layout.inner;
  const std::int64_t length = smaller(layout.inner, kBlock);
  const std::int64_t group = kBlock / length;
  for (std::int64_t outer = 0; outer < layout.outer; outer += group) {
    const std::int64_t runs = smaller(group, layout.outer - outer);
    const std::int64_t first = outer * distance + channel * layout.inner;
    for (std::int64_t i = 0; i < layout.inner;) {
      // The last piece takes what would be too short for a piece of its own.
      const std::int64_t rest = layout.inner - i;
      const std::int64_t n = rest < length + kDoubles ? rest : length;
      visit(Block{first + i, n, runs, distance});
      i += n;
    }
  }
}

template <class T>
GLUON_SYNCBN_INLINE Deviations<double> deviations(const T* x, const Block& block, double pivot) {
  Doubles sum[kChains] = {};
  Doubles squares[kChains] = {};
  const auto add = [&](Doubles d, std::int64_t k) {
    sum[k] += d;
    squares[k] += d * d;
  };
  for (std::int64_t run = 0; run < block.runs; ++run) {
    const T* from = x + block.begin + run * block.distance;
    const T* last = from + block.length - kDoubles;
    std::int64_t i = 0;
    for (; i + kChains * kDoubles <= block.length; i += kChains * kDoubles) {
      for (std::int64_t k = 0; k < kChains; ++k) {
        add(load_wide(from + i + k * kDoubles) - pivot, k);
      }
    }
    for (; i + kDoubles <= block.length; i += kDoubles) add(load_wide(from + i) - pivot, 0);
    if (i < block.length) add(last_lanes(load_wide(last) - pivot, block.length - i), 1);
  }
  return {pivot, sum_of_lanes((sum[0] + sum[1]) + (sum[2] + sum[3])),
          sum_of_lanes((squares[0] + squares[1]) + (squares[2] + squares[3]))};
}

template <class T>
void run_moments(const T* x, const Layout& layout, ChannelRange channels, double* means,
                 double* m2s) {
  for (std::int64_t channel = channels.begin; channel < channels.end; ++channel) {
    // A good guess at the mean saves the second look at the first block; any would do.
    double mean = sum_of_lanes(load_wide(x + channel * layout.inner)) / kDoubles;
    double m2 = 0;
    double count = 0;
    for_each_block(layout, channel, [&](const Block& block) {
      const double n = block.count();
      Deviations<double> d = deviations(x, block, mean);
      const double share = 1 / n;
      if (is_far(d, share)) d = deviations(x, block, d.mean(share));
      merge(count, &mean, &m2, n, d.mean(share), d.m2(share));
      count += n;
    });
    means[channel] = mean;
    m2s[channel] = m2;
  }
}

struct Products {
  double dz;
  double dz_centered;
};

/// The two terms of a vector of elements.
template <class Gate>
struct GradientTerms {
  Doubles mean;
  Gate gate;

  /// `x` is the output if the gate works in place.
  template <class... Output>
  GLUON_SYNCBN_INLINE Terms operator()(Doubles dy, Doubles x, Output... y) const {
    const Doubles centered = gate.centered(x, mean);
    return {gate(dy, centered, x, y...), centered};
  }
};

template <class T, int kInputs, class Gate>
GLUON_SYNCBN_INLINE Products products(const Inputs<T, kInputs>& inputs, const Block& block,
                                      const GradientTerms<Gate>& terms) {
  Doubles plain[kChains] = {};
  Doubles centered[kChains] = {};
  const auto add = [&](const Terms& t, std::int64_t k) {
    plain[k] += t.first;
    centered[k] += t.first * t.second;
  };
  for (std::int64_t run = 0; run < block.runs; ++run) {
    const Inputs<T, kInputs> of_run = inputs + (block.begin + run * block.distance);
    const auto terms_at = [&](std::int64_t i) GLUON_SYNCBN_INLINED {
      return (of_run + i).apply(terms, [](const T* from) GLUON_SYNCBN_INLINED {
        return load_wide(from);
      });
    };
    std::int64_t i = 0;
    for (; i + kChains * kDoubles <= block.length; i += kChains * kDoubles) {
      for (std::int64_t k = 0; k < kChains; ++k) add(terms_at(i + k * kDoubles), k);
    }
    for (; i + kDoubles <= block.length; i += kDoubles) add(terms_at(i), 0);
    if (i < block.length) {
      const LastLanes last(block.length - i);
      add(last.count(terms_at(block.length - kDoubles)), 1);
    }
  }
  return {sum_of_lanes((plain[0] + plain[1]) + (plain[2] + plain[3])),
          sum_of_lanes((centered[0] + centered[1]) + (centered[2] + centered[3]))};
}

template <class T>
void run_gradient_sums(const T* dy, const T* x, const T* y, const Layout& layout,
                       ChannelRange channels, const NormalizationArrays<double>& p,
                       const Activation& activation, double* sum_dz, double* sum_dz_centered) {
  with_gates(activation, x, y, p, [&](auto gates) GLUON_SYNCBN_INLINED {
    const auto inputs = inputs_of<decltype(gates)>(dy, x, y);
    for (std::int64_t channel = channels.begin; channel < channels.end; ++channel) {
      const auto of_channel = [&](const double* array)
                                  GLUON_SYNCBN_INLINED { return broadcast(array[channel]); };
      const auto gate = gates.at(of_channel);
      const GradientTerms<decltype(gates.at(of_channel))> terms{of_channel(p.center), gate};
      Products sums{0, 0};
      for_each_block(layout, channel, [&](const Block& block) {
        const Products more = products(inputs, block, terms);
        sums.dz += more.dz;
        sums.dz_centered += more.dz_centered;
      });
      sum_dz[channel] = sums.dz;
      sum_dz_centered[channel] = sums.dz_centered;
    }
  });
}

/// Writes value(i), a vector for out[i] and those after it, to out[0, length); value(0, length)
/// where that is less than a vector. Vectors at both ends may overlap with those between: they are
/// made before anything is written, since the output may be an input.
template <StoreMode kStore, class T, class Value>
GLUON_SYNCBN_INLINE void write(T* out, std::int64_t length, const Value& value) {
  constexpr bool kAdd = kStore == StoreMode::kAdd;
  if (length < kReals<T>) {
    const Reals<T> v = value(0, length);
    store(out, kAdd ? load(out, length) + v : v, length);
    return;
  }
  const auto made = [&](std::int64_t i) { return kAdd ? load(out + i) + value(i) : value(i); };
  const std::int64_t last = length - kReals<T>;
  const Reals<T> at_begin = made(0);
  const Reals<T> at_end = made(last);
  std::int64_t i = kReals<T>;
  if (kStore == StoreMode::kStream) {
    constexpr std::uintptr_t kSize = kReals<T> * sizeof(T);
    const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(out) % kSize;
    i = static_cast<std::int64_t>((kSize - past) / sizeof(T));
  }
#pragma GCC unroll 4
  for (; i < last; i += kReals<T>) {
    kStore == StoreMode::kStream ? stream(out + i, made(i)) : store(out + i, made(i));
  }
  store(out, at_begin);
  store(out + last, at_end);
}

/// Calls visit(begin of a run, channel) for all runs of some channels, in memory order within each
/// outer index.
template <class Visit>
GLUON_SYNCBN_INLINE void for_each_run(const Layout& layout, ChannelRange channels,
                                      const Visit& visit) {
  for (std::int64_t outer = 0; outer < layout.outer; ++outer) {
    for (std::int64_t channel = channels.begin; channel < channels.end; ++channel) {
      visit((outer * layout.channels + channel) * layout.inner, channel);
    }
  }
}

/// Calls visit(constant) with `store` as a constant, so that no loop has to look at it.
template <StoreMode kValue>
struct StoreConstant {
  static constexpr StoreMode value = kValue;
};
template <class Visit>
GLUON_SYNCBN_INLINE void with_store(StoreMode store, const Visit& visit) {
  switch (store) {
    case StoreMode::kAdd:
      return visit(StoreConstant<StoreMode::kAdd>());
    case StoreMode::kStream:
      visit(StoreConstant<StoreMode::kStream>());
      return end_of_stream();
    default:
      return visit(StoreConstant<StoreMode::kAssign>());
  }
}

/// What is computed of each element, made like gates by at(load) for some channels.

template <class V, class Act>
struct Normalize {
  V center;
  V scale;
  V shift;
  Act act;

  GLUON_SYNCBN_INLINE V operator()(V x) const { return act.value((x - center) * scale + shift); }
  GLUON_SYNCBN_INLINE V operator()(V x, V shortcut) const {
    return act.value((x - center) * scale + shift + shortcut);
  }
};

template <class R, class Act>
struct NormalizeBy {
  const NormalizationArrays<R>& p;
  Act act;

  template <class Load>
  GLUON_SYNCBN_INLINE Normalize<Reals<R>, Act> at(const Load& load) const {
    return {load(p.center), load(p.scale), load(p.shift), act};
  }
};

template <class V, class Gate>
struct Differentiate {
  V center;
  V dy_factor;
  V x_factor;
  V constant;
  Gate gate;

  template <class... Output>
  GLUON_SYNCBN_INLINE V operator()(V dy, V x, Output... y) const {
    const V centered = gate.centered(x, center);
    return dy_factor * gate(dy, centered, x, y...) + (x_factor * centered + constant);
  }
};

template <class R, class Gates>
struct DifferentiateBy {
  const R* center;
  const InputGradientArrays<R>& p;
  Gates gates;

  template <class Load>
  GLUON_SYNCBN_INLINE auto at(const Load& load) const {
    return Differentiate<Reals<R>, decltype(gates.at(load))>{
        load(center), load(p.dy_factor), load(p.x_factor), load(p.constant), gates.at(load)};
  }
};

/// Calls visit(inputs, what is computed of them).
template <class T, class Visit>
GLUON_SYNCBN_INLINE void with_normalization(const T* x, const T* shortcut,
                                            const NormalizationArrays<Real<T>>& p,
                                            const Activation& activation, const Visit& visit) {
  using R = Real<T>;
  if (!shortcut && activation.type == ActType::kNone) {
    return visit(Inputs<T, 1>{{x}}, NormalizeBy<R, Identity>{p, Identity()});
  }
  with_activation(activation, [&](auto act) GLUON_SYNCBN_INLINED {
    const NormalizeBy<R, decltype(act)> by{p, act};
    if (shortcut) return visit(Inputs<T, 2>{{x, shortcut}}, by);
    visit(Inputs<T, 1>{{x}}, by);
  });
}

template <class T, int kInputs, class F>
struct Computed {
  const Inputs<T, kInputs>& inputs;
  const F& f;

  GLUON_SYNCBN_INLINE Reals<T> operator()(std::int64_t i) const {
    return (inputs + i).apply(f, [](const T* from) GLUON_SYNCBN_INLINED { return load(from); });
  }
  GLUON_SYNCBN_INLINE Reals<T> operator()(std::int64_t i, std::int64_t n) const {
    return (inputs + i).apply(f, [n](const T* from) GLUON_SYNCBN_INLINED { return load(from, n); });
  }
};

template <class T, int kInputs, class By>
GLUON_SYNCBN_INLINE void write_runs(const Inputs<T, kInputs>& inputs, const Layout& layout,
                                    ChannelRange channels, const By& by, StoreMode how, T* out) {
  with_store(how, [&](auto constant) {
    for_each_run(layout, channels, [&](std::int64_t begin, std::int64_t c) {
      const auto f =
          by.at([c](const Real<T>* array) GLUON_SYNCBN_INLINED { return broadcast(array[c]); });
      const Inputs<T, kInputs> of_run = inputs + begin;
      write<decltype(constant)::value>(out + begin, layout.inner,
                                       Computed<T, kInputs, decltype(f)>{of_run, f});
    });
  });
}

template <class T>
void run_normalize(const T* x, const T* shortcut, const Layout& layout, ChannelRange channels,
                   const NormalizationArrays<Real<T>>& p, const Activation& activation,
                   StoreMode how, T* y) {
  with_normalization(x, shortcut, p, activation,
                     [&](const auto& inputs, const auto& by) GLUON_SYNCBN_INLINED {
                       write_runs(inputs, layout, channels, by, how, y);
                     });
}

template <class T>
void run_input_gradient(const T* dy, const T* x, const T* y, const Layout& layout,
                        ChannelRange channels, const NormalizationArrays<Real<T>>& n,
                        const InputGradientArrays<Real<T>>& p, const Activation& activation,
                        StoreMode how, T* dx) {
  with_gates(activation, x, y, n, [&](auto gates) GLUON_SYNCBN_INLINED {
    using Gates = decltype(gates);
    write_runs(inputs_of<Gates>(dy, x, y), layout, channels,
               DifferentiateBy<Real<T>, Gates>{n.center, p, gates}, how, dx);
  });
}

template <class Act>
struct GateByOutput {
  Act act;
  template <class V>
  GLUON_SYNCBN_INLINE V operator()(V dy, V y) const {
    return act.gradient_by_output(dy, y);
  }
};

template <class T>
void shortcut_gradient(const T* dy, const T* y, std::int64_t number, const Activation& activation,
                       StoreMode how, T* dz) {
  with_activation(activation, [&](auto act) GLUON_SYNCBN_INLINED {
    const GateByOutput<decltype(act)> f{act};
    const Inputs<T, 2> inputs{{dy, y}};
    with_store(how, [&](auto constant) {
      write<decltype(constant)::value>(dz, number,
                                       Computed<T, 2, GateByOutput<decltype(act)>>{inputs, f});
    });
  });
}

/// Columns.

/// What the last tile of a row may have more than others, so that none is less than a vector.
constexpr std::int64_t kMostColumns = kTile + kDoubles;

GLUON_SYNCBN_INLINE std::int64_t columns_of_tile(std::int64_t rest) {
  return rest < kMostColumns ? rest : kTile;
}

/// Sums over the rows of a tile, one for each of its columns, with room for a vector at the end.
struct TileSums {
  double first[kMostColumns];
  double second[kMostColumns];
};

/// Calls visit(i, lanes) for vectors that cover all columns.
template <class Visit>
GLUON_SYNCBN_INLINE void for_each_vector(std::int64_t columns, const Visit& visit) {
  if (columns < kDoubles) return visit(0, FirstLanes{columns});
  std::int64_t i = 0;
  for (; i + kDoubles <= columns; i += kDoubles) visit(i, AllLanes());
  if (i < columns) visit(columns - kDoubles, LastLanes(columns - i));
}

/// Sums terms(row, column, lanes) over rows, for all columns of a tile of T. A few rows at a time
/// are read side by side, so that the sums are seldom loaded and stored. The processor does not
/// foresee that, so fetch(row, column) is called for every line of memory well before, row by row.
template <class T, class EachTerms, class Fetch>
GLUON_SYNCBN_INLINE void sum_rows(std::int64_t rows, std::int64_t columns, TileSums* sums,
                                  const EachTerms& terms, const Fetch& fetch) {
  constexpr std::int64_t kLine = kLineBytes / static_cast<std::int64_t>(sizeof(T));
  const std::int64_t used = columns < kDoubles ? kDoubles : columns;
  for (std::int64_t i = 0; i < used; ++i) sums->first[i] = sums->second[i] = 0;
  const auto add = [&](std::int64_t row, std::int64_t group) GLUON_SYNCBN_INLINED {
    std::int64_t row_ahead = row + kRowsAhead;
    std::int64_t column_ahead = 0;
    for_each_vector(columns, [&](std::int64_t i, auto lanes) GLUON_SYNCBN_INLINED {
      for (std::int64_t fetched = 0; fetched < group * kDoubles; fetched += kLine) {
        fetch(row_ahead, column_ahead);
        column_ahead += kLine;
        if (column_ahead >= columns) {
          column_ahead = 0;
          ++row_ahead;
        }
      }
      Doubles first = load(sums->first + i);
      Doubles second = load(sums->second + i);
      for (std::int64_t r = row; r < row + group; ++r) {
        const Terms more = lanes.count(terms(r, i, lanes));
        first += more.first;
        second += more.second;
      }
      store(sums->first + i, first);
      store(sums->second + i, second);
    });
  };
  std::int64_t row = 0;
  for (; row + kRowGroup <= rows; row += kRowGroup) add(row, kRowGroup);
  for (; row < rows; ++row) add(row, 1);
}

/// The means of a tile as pivots; where there are none yet, those of a few rows at its top, exact
/// where these are all the same.
template <class T>
GLUON_SYNCBN_INLINE void choose_pivots(const T* x, std::int64_t width, std::int64_t rows,
                                       const double* mean, bool first, std::int64_t columns,
                                       double* pivots) {
  const std::int64_t top = rows < kRowGroup ? 1 : kRowGroup;
  for_each_vector(columns, [&](std::int64_t i, auto lanes) {
    Doubles pivot = first ? lanes(x + i) : lanes(mean + i);
    if (first && top > 1) {
      for (std::int64_t row = 1; row < top; ++row) pivot += lanes(x + row * width + i);
      pivot /= static_cast<double>(kRowGroup);
    }
    store(pivots + i, pivot);
  });
}

/// Merges `rows` rows of a tile, `rows_before` rows from the top, into the moments of its columns.
template <class T>
void merge_tile(const T* x, std::int64_t width, std::int64_t rows, std::int64_t columns,
                std::int64_t rows_before, double* mean, double* m2) {
  TileSums sums;
  double pivots[kMostColumns];
  const auto n = static_cast<double>(rows);
  const double share = 1 / n;
  const auto look = [&] {
    sum_rows<T>(
        rows, columns, &sums,
        [&](std::int64_t row, std::int64_t i, auto lanes) GLUON_SYNCBN_INLINED {
          const Doubles d = lanes(x + row * width + i) - load(pivots + i);
          return Terms{d, d * d};
        },
        [&](std::int64_t row, std::int64_t i) GLUON_SYNCBN_INLINED { fetch(x + row * width + i); });
  };
  const auto seen = [&](std::int64_t i) {
    return Deviations<Doubles>{load(pivots + i), load(sums.first + i), load(sums.second + i)};
  };
  choose_pivots(x, width, rows, mean, rows_before == 0, columns, pivots);
  look();
  bool far = false;
  for_each_vector(columns, [&](std::int64_t i, auto) { far = far || is_far(seen(i), share); });
  if (far) {
    double better[kMostColumns];
    for_each_vector(columns, [&](std::int64_t i, auto) { store(better + i, seen(i).mean(share)); });
    __builtin_memcpy(pivots, better, sizeof(pivots));
    look();
  }
  for (std::int64_t i = 0; i < columns; ++i) {
    const Deviations<double> d{pivots[i], sums.first[i], sums.second[i]};
    merge(static_cast<double>(rows_before), mean + i, m2 + i, n, d.mean(share), d.m2(share));
  }
}

template <class T>
void column_moments(const T* x, Extent extent, double* mean, double* m2) {
  for (std::int64_t i = 0; i < extent.columns; ++i) mean[i] = m2[i] = 0;
  for (std::int64_t row = 0; row < extent.rows; row += kBlockRows) {
    const std::int64_t rows = smaller(kBlockRows, extent.rows - row);
    for (std::int64_t i = 0; i < extent.columns;) {
      const std::int64_t columns = columns_of_tile(extent.columns - i);
      merge_tile(x + row * extent.columns + i, extent.columns, rows, columns, row, mean + i,
                 m2 + i);
      i += columns;
    }
  }
}

template <class T>
void column_gradient_sums(const T* dy, const T* x, const T* y, Extent extent,
                          const NormalizationArrays<double>& p, const Activation& activation,
                          double* sum_dz, double* sum_dz_centered) {
  const std::int64_t width = extent.columns;
  for (std::int64_t i = 0; i < width; ++i) sum_dz[i] = sum_dz_centered[i] = 0;
  TileSums sums;
  with_gates(activation, x, y, p, [&](auto gates) GLUON_SYNCBN_INLINED {
    const auto inputs = inputs_of<decltype(gates)>(dy, x, y);
    for (std::int64_t row = 0; row < extent.rows; row += kBlockRows) {
      const std::int64_t rows = smaller(kBlockRows, extent.rows - row);
      for (std::int64_t tile = 0; tile < width;) {
        const std::int64_t columns = columns_of_tile(width - tile);
        const auto of_tile = inputs + (row * width + tile);
        sum_rows<T>(
            rows, columns, &sums,
            [&](std::int64_t r, std::int64_t i, auto lanes) GLUON_SYNCBN_INLINED {
              const auto of_columns = [&](const double* array)
                                          GLUON_SYNCBN_INLINED { return lanes(array + tile + i); };
              const GradientTerms<decltype(gates.at(of_columns))> terms{of_columns(p.center),
                                                                        gates.at(of_columns)};
              const Terms t = (of_tile + (r * width + i)).apply(terms, lanes);
              return Terms{t.first, t.first * t.second};
            },
            [&](std::int64_t r, std::int64_t i) GLUON_SYNCBN_INLINED {
              for (const T* array : of_tile.arrays) fetch(array + r * width + i);
            });
        for (std::int64_t i = 0; i < columns; ++i) {
          sum_dz[tile + i] += sums.first[i];
          sum_dz_centered[tile + i] += sums.second[i];
        }
        tile += columns;
      }
    }
  });
}

/// As Computed, by numbers that change from element to element.
template <class T, int kInputs, class By>
struct ComputedColumns {
  const Inputs<T, kInputs>& inputs;
  const By& by;

  GLUON_SYNCBN_INLINE Reals<T> operator()(std::int64_t i) const {
    const auto f =
        by.at([i](const Real<T>* array) GLUON_SYNCBN_INLINED { return load(array + i); });
    return Computed<T, kInputs, decltype(f)>{inputs, f}(i);
  }
  GLUON_SYNCBN_INLINE Reals<T> operator()(std::int64_t i, std::int64_t n) const {
    const auto f =
        by.at([i, n](const Real<T>* array) GLUON_SYNCBN_INLINED { return load(array + i, n); });
    return Computed<T, kInputs, decltype(f)>{inputs, f}(i, n);
  }
};

template <class T, int kInputs, class By>
GLUON_SYNCBN_INLINE void write_rows(const Inputs<T, kInputs>& inputs, Extent extent, const By& by,
                                    StoreMode how, T* out) {
  with_store(how, [&](auto constant) {
    for (std::int64_t row = 0; row < extent.rows; ++row) {
      const std::int64_t begin = row * extent.columns;
      const Inputs<T, kInputs> of_row = inputs + begin;
      write<decltype(constant)::value>(out + begin, extent.columns,
                                       ComputedColumns<T, kInputs, By>{of_row, by});
    }
  });
}

template <class T>
void column_normalize(const T* x, const T* shortcut, Extent extent,
                      const NormalizationArrays<Real<T>>& p, const Activation& activation,
                      StoreMode how, T* y) {
  with_normalization(x, shortcut, p, activation,
                     [&](const auto& inputs, const auto& by)
                         GLUON_SYNCBN_INLINED { write_rows(inputs, extent, by, how, y); });
}

template <class T>
void column_input_gradient(const T* dy, const T* x, const T* y, Extent extent,
                           const NormalizationArrays<Real<T>>& n,
                           const InputGradientArrays<Real<T>>& p, const Activation& activation,
                           StoreMode how, T* dx) {
  with_gates(activation, x, y, n, [&](auto gates) GLUON_SYNCBN_INLINED {
    using Gates = decltype(gates);
    write_rows(inputs_of<Gates>(dy, x, y), extent,
               DifferentiateBy<Real<T>, Gates>{n.center, p, gates}, how, dx);
  });
}

template <class T>
constexpr Kernels<T> kernels_of() {
  return {&run_moments<T>,        &run_gradient_sums<T>,     &run_normalize<T>,
          &run_input_gradient<T>, &column_moments<T>,        &column_gradient_sums<T>,
          &column_normalize<T>,   &column_input_gradient<T>, &shortcut_gradient<T>};
}

#define GLUON_SYNCBN_KERNELS(T) kernels_of<T>(),
constexpr IsaKernels kKernels{GLUON_SYNCBN_FOR_EACH_DTYPE(GLUON_SYNCBN_KERNELS)};
#undef GLUON_SYNCBN_KERNELS

}  // namespace

const IsaKernels& kernels() { return kKernels; }

}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA

#endif  // GLUON_SYNCBN_CPU_SIMD_LOOPS_H_

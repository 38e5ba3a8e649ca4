#pragma once

#include <cstdint>

#include "cpu/simd/isa.h"
#include "cpu/simd/vectors.h"
#include "norm/activation.h"
#include "norm/coefficients.h"
#include "norm/variants.h"

namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA {
namespace {

GLUON_SYNCBN_INLINE float exp_of(float x) { return __builtin_expf(x); }
GLUON_SYNCBN_INLINE double exp_of(double x) { return __builtin_exp(x); }
GLUON_SYNCBN_INLINE float expm1_of(float x) { return __builtin_expm1f(x); }
GLUON_SYNCBN_INLINE double expm1_of(double x) { return __builtin_expm1(x); }
GLUON_SYNCBN_INLINE float log1p_of(float x) { return __builtin_log1pf(x); }
GLUON_SYNCBN_INLINE double log1p_of(double x) { return __builtin_log1p(x); }

/// The Math of norm/activation.h for vectors. exp, expm1 and log1p are not inlined: a call takes
/// little time beside one exp() for each lane.
struct VectorMath {
  using Number = double;

  template <class V>
  GLUON_SYNCBN_INLINE static V lanes(V like, double number) {
    return broadcast(like, number);
  }
  template <class V>
  GLUON_SYNCBN_INLINE static V product(V v, double number) {
    using Bits = decltype(v < v);
    const Bits mask = Bits{} - (number != 0 ? 1 : 0);
    return (V)((Bits)(broadcast(v, number) * v) & mask);
  }
  template <class V>
  GLUON_SYNCBN_CALLED static V exp(V v) {
    for (std::int64_t i = 0; i < lanes_of<V>(); ++i) v[i] = exp_of(v[i]);
    return v;
  }
  template <class V>
  GLUON_SYNCBN_CALLED static V expm1(V v) {
    for (std::int64_t i = 0; i < lanes_of<V>(); ++i) v[i] = expm1_of(v[i]);
    return v;
  }
  template <class V>
  GLUON_SYNCBN_CALLED static V log1p(V v) {
    for (std::int64_t i = 0; i < lanes_of<V>(); ++i) v[i] = log1p_of(v[i]);
    return v;
  }
};

/// The functions of kNone, faster than a Rectifier with slope 1.
struct Identity {
  template <class V>
  GLUON_SYNCBN_INLINE V value(V z) const {
    return z;
  }
  template <class V>
  GLUON_SYNCBN_INLINE V gradient_by_output(V dy, V /*y*/) const {
    return dy;
  }
  template <class V>
  GLUON_SYNCBN_INLINE V inverse(V y) const {
    return y;
  }
};

/// Calls visit(functions) with the functions of an activation, for outputs of T.
template <class T, class Visit>
GLUON_SYNCBN_INLINE void with_activation(const Activation& activation, const Visit& visit) {
  ActFunctions<VectorMath>(activation, kSaturation<T>).visit(visit);
}

/// Turns dy into dz.
template <class Act, DzFrom kFrom>
struct Gate {
  Act act;

  /// `n` are the coefficients of z, which only kZ reads. In place, `x` is the output.
  template <class V>
  GLUON_SYNCBN_INLINE V dz(const Affine<V>& n, V dy, V x, V y) const {
    if constexpr (kFrom == DzFrom::kDy) {
      return dy;
    } else if constexpr (kFrom == DzFrom::kZ) {
      return act.gradient(dy, n(x));
    } else {
      return act.gradient_by_output(dy, y);
    }
  }
  template <class V>
  GLUON_SYNCBN_INLINE V dz(const Affine<V>& n, V dy, V x) const {
    return dz(n, dy, x, x);
  }
  /// Returns x, or z in place.
  template <class V>
  GLUON_SYNCBN_INLINE V input(V x) const {
    return kFrom == DzFrom::kInPlace ? act.inverse(x) : x;
  }
  /// Returns the second factor of the second sum.
  template <class V>
  GLUON_SYNCBN_INLINE V centered(const Affine<V>& n, V x) const {
    const V from_center = input(x) - n.center;
    return kFrom == DzFrom::kInPlace ? from_center * n.scale : from_center;
  }
};

/// Input arrays of the same shape.
template <class T, int kNumber>
struct Inputs {
  const T* arrays[kNumber];

  GLUON_SYNCBN_INLINE Inputs operator+(std::int64_t offset) const {
    Inputs moved{};
#pragma GCC unroll 3
    for (int i = 0; i < kNumber; ++i) moved.arrays[i] = arrays[i] + offset;
    return moved;
  }

  /// Returns f(n, vector, ...) with one vector, of the type of `like`, from each array.
  template <class V, class F, class Coefficients>
  GLUON_SYNCBN_INLINE auto apply(V like, const F& f, const Coefficients& n) const {
    if constexpr (kNumber == 1) {
      return f(n, load(like, arrays[0]));
    } else if constexpr (kNumber == 2) {
      return f(n, load(like, arrays[0]), load(like, arrays[1]));
    } else {
      return f(n, load(like, arrays[0]), load(like, arrays[1]), load(like, arrays[2]));
    }
  }
};

/// Calls visit(gate, input arrays).
template <class T, class Visit>
GLUON_SYNCBN_INLINE void with_gate(const BackwardInputs<T>& inputs, const Visit& visit) {
  with_dz_from(inputs.from, [&](auto variant) GLUON_SYNCBN_INLINED {
    constexpr DzFrom kFrom = decltype(variant)::kFrom;
    const auto with = [&](auto act) GLUON_SYNCBN_INLINED {
      Inputs<T, kBackwardInputs<kFrom>> arrays{};
      for (int i = 0; i < kBackwardInputs<kFrom>; ++i) arrays.arrays[i] = inputs.arrays[i];
      visit(Gate<decltype(act), kFrom>{act}, arrays);
    };
    if constexpr (kFrom == DzFrom::kDy) return with(Identity());
    if constexpr (kFrom == DzFrom::kInPlace) {
      if (inputs.activation.type == ActType::kNone) return with(Identity());
    }
    if constexpr (kFrom != DzFrom::kDy) with_activation<T>(inputs.activation, with);
  });
}

}  // namespace
}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA

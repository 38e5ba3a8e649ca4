#pragma once

#include <cstdint>

#include "cpu/simd/isa.h"
#include "cpu/simd/vectors.h"
#include "norm/activation.h"

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
  GLUON_SYNCBN_INLINE V gradient(V dy, V /*z*/) const {
    return dy;
  }
  template <class V>
  GLUON_SYNCBN_INLINE V gradient_by_output(V dy, V /*y*/) const {
    return dy;
  }
  template <class V>
  GLUON_SYNCBN_INLINE V inverse(V y, double /*lowest*/) const {
    return y;
  }
};

/// Calls visit(functions) with the functions of an activation.
template <class Visit>
GLUON_SYNCBN_INLINE void with_activation(const Activation& activation, const Visit& visit) {
  ActFunctions<VectorMath>(activation).visit(visit);
}

/// From what a gate computes dz.
enum class DzFrom { kDy, kZ, kOutput, kInPlace };

/// Turns dy into dz = dy * act'(z) for one channel, or for a vector of columns. Also computes
/// x - center. In place, both are computed from the output, which is passed as x.
template <class T, class V, class Act, DzFrom kFrom>
struct ChannelGate {
  V scale;
  V shift;
  Act act;

  GLUON_SYNCBN_INLINE V centered(V x, V center) const {
    if (kFrom != DzFrom::kInPlace) return x - center;
    return (act.inverse(x, kSaturation<T>) - shift) * scale;
  }
  GLUON_SYNCBN_INLINE V operator()(V dy, V centered, V /*x*/, V y) const {
    if (kFrom == DzFrom::kDy) return dy;
    if (kFrom == DzFrom::kZ) return act.gradient(dy, centered * scale + shift);
    return act.gradient_by_output(dy, y);
  }
  GLUON_SYNCBN_INLINE V operator()(V dy, V centered, V x) const {
    return (*this)(dy, centered, x, x);
  }
};

/// The gates of all channels. at(load) makes a ChannelGate, where load(array) gives its scale and
/// shift.
template <class T, class R, class Act, DzFrom kFrom>
struct Gates {
  static constexpr int kInputs = kFrom == DzFrom::kOutput ? 3 : 2;  // dy, x or y, y
  const R* scale;
  const R* shift;
  Act act;

  template <class Load>
  GLUON_SYNCBN_INLINE auto at(const Load& load) const {
    using V = decltype(load(scale));
    constexpr bool kNormalizes = kFrom == DzFrom::kZ || kFrom == DzFrom::kInPlace;
    return ChannelGate<T, V, Act, kFrom>{kNormalizes ? load(scale) : V{},
                                         kNormalizes ? load(shift) : V{}, act};
  }
};

/// Calls visit(gates) with the gates of an activation. They compute act'(z) from y, or from z if y
/// is null. They work in place if x is null.
template <class T, class R, class Visit>
GLUON_SYNCBN_INLINE void with_gates(const Activation& activation, const T* x, const T* y,
                                    const NormalizationArrays<R>& p, const Visit& visit) {
  if (activation.type == ActType::kNone) {
    if (!x) return visit(Gates<T, R, Identity, DzFrom::kInPlace>{p.scale, p.shift, {}});
    return visit(Gates<T, R, Identity, DzFrom::kDy>{p.scale, p.shift, {}});
  }
  with_activation(activation, [&](auto act) GLUON_SYNCBN_INLINED {
    using Act = decltype(act);
    if (!x) return visit(Gates<T, R, Act, DzFrom::kInPlace>{p.scale, p.shift, act});
    if (y) return visit(Gates<T, R, Act, DzFrom::kOutput>{p.scale, p.shift, act});
    visit(Gates<T, R, Act, DzFrom::kZ>{p.scale, p.shift, act});
  });
}

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

  /// Returns function(vector, ...) with one vector, of the type of `like`, from each array.
  template <class V, class Function>
  GLUON_SYNCBN_INLINE auto apply(V like, const Function& function) const {
    if constexpr (kNumber == 1) {
      return function(load(like, arrays[0]));
    } else if constexpr (kNumber == 2) {
      return function(load(like, arrays[0]), load(like, arrays[1]));
    } else {
      return function(load(like, arrays[0]), load(like, arrays[1]), load(like, arrays[2]));
    }
  }
};

/// The input arrays that a gate needs. In place, y takes the place of x.
template <class Gates, class T>
GLUON_SYNCBN_INLINE Inputs<T, Gates::kInputs> inputs_of(const T* dy, const T* x, const T* y) {
  if constexpr (Gates::kInputs == 2) {
    return {{dy, x ? x : y}};
  } else {
    return {{dy, x, y}};
  }
}

/// Computes dz and dz * (x - center) of a vector of elements, which the caller sums.
template <class V, class Gate>
struct GradientTerms {
  V center;
  Gate gate;

  /// `x` is the output if the gate works in place.
  template <class... Output>
  GLUON_SYNCBN_INLINE Terms<V> operator()(V dy, V x, Output... y) const {
    const V centered = gate.centered(x, center);
    const V dz = gate(dy, centered, x, y...);
    return {dz, dz * centered};
  }
};

/// load(array) gives the numbers of the elements' channels.
template <class Gates, class Load>
GLUON_SYNCBN_INLINE auto gradient_terms(const double* center, const Gates& gates,
                                        const Load& load) {
  return GradientTerms<decltype(load(center)), decltype(gates.at(load))>{load(center),
                                                                         gates.at(load)};
}

}  // namespace
}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA

#pragma once

#include <cstdint>

#include "cpu/simd/isa.h"
#include "cpu/simd/vectors.h"
#include "norm/activation.h"

namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA {
namespace {

// Each activation has these functions, for vectors V:
//   value                the output for z
//   gradient             the gradient with respect to z, computed from z
//   gradient_by_output   the same gradient, computed from the output
//   inverse<T>           z, computed from an output that was rounded to T

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
  template <class T, class V>
  GLUON_SYNCBN_INLINE V inverse(V y) const {
    return y;
  }
};

/// ReLU, leaky or not. If the slope is 0, values below 0 become 0 even if they are infinite.
struct Rectifier {
  double slope;

  template <class V>
  GLUON_SYNCBN_INLINE V value(V z) const {
    return z < 0 ? below(z) : z;  // keeps NaN
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

/// Its functions are called and not inlined: a call takes little time beside expm1() for each lane.
struct Elu {
  double slope;

  template <class V>
  GLUON_SYNCBN_CALLED V value(V z) const {
    V below = z > 0 ? V{} : z;
    for (std::int64_t i = 0; i < lanes_of<V>(); ++i) below[i] = expm1_of(below[i]);
    return z > 0 ? z : of_lanes(z, slope) * below;
  }
  template <class V>
  GLUON_SYNCBN_CALLED V gradient(V dy, V z) const {
    V below = z > 0 ? V{} : z;
    for (std::int64_t i = 0; i < lanes_of<V>(); ++i) below[i] = exp_of(below[i]);
    return z > 0 ? dy : dy * (of_lanes(z, slope) * below);
  }
  template <class V>
  GLUON_SYNCBN_INLINE V gradient_by_output(V dy, V y) const {
    return y > 0 ? dy : dy * (y + of_lanes(y, slope));
  }
  template <class T, class V>
  GLUON_SYNCBN_CALLED V inverse(V y) const {
    const V ratio = y > 0 ? V{} : y / of_lanes(y, slope);
    V below = ratio < -1 ? of_lanes(y, -1) : ratio;
    for (std::int64_t i = 0; i < lanes_of<V>(); ++i) below[i] = log1p_of(below[i]);
    const V lowest = of_lanes(y, kSaturation<T>);
    return y > 0 ? y : below < lowest ? lowest : below;  // keeps NaN
  }
};

/// Calls visit(Elu) or visit(Rectifier). The caller handles the identity, if it wants a faster one.
template <class Visit>
GLUON_SYNCBN_INLINE void with_activation(const Activation& activation, const Visit& visit) {
  if (activation.type == ActType::kElu) return visit(Elu{activation.slope});
  visit(Rectifier{activation.type == ActType::kNone ? 1 : activation.slope});
}

}  // namespace
}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA

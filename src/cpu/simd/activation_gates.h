#pragma once

#include <cstdint>

#include "cpu/simd/activations.h"
#include "cpu/simd/isa.h"
#include "cpu/simd/vectors.h"
#include "norm/activation.h"

namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA {
namespace {

/// A flag that is known when the loop is compiled.
template <bool kValue>
struct Always {
  constexpr operator bool() const { return kValue; }
};

/// Turns dy into dz = dy * act'(z) for one channel, or for a vector of columns. Also computes
/// x - center. In place, both are computed from the output, which is passed as x.
template <class T, class V, class Act, class InPlace, class ByOutput>
struct ChannelGate {
  V scale;
  V shift;
  Act act;
  InPlace in_place;
  ByOutput by_output;

  GLUON_SYNCBN_INLINE V centered(V x, V center) const {
    return in_place ? (act.template inverse<T>(x) - shift) * scale : x - center;
  }
  GLUON_SYNCBN_INLINE V operator()(V dy, V centered, V /*x*/, V y) const {
    return by_output ? act.gradient_by_output(dy, y) : act.gradient(dy, centered * scale + shift);
  }
  GLUON_SYNCBN_INLINE V operator()(V dy, V centered, V x) const {
    return (*this)(dy, centered, x, x);
  }
};

/// The gates of all channels. at(load) makes a ChannelGate, where load(array) gives its numbers.
template <class T, class R, int kArrays, class Act, class InPlace, class ByOutput>
struct Gates {
  static constexpr int kInputs = kArrays;  // dy and x, or dy, x and y
  const R* scale;
  const R* shift;
  Act act;
  InPlace in_place;
  ByOutput by_output;

  template <class Load>
  GLUON_SYNCBN_INLINE auto at(const Load& load) const {
    using V = decltype(load(scale));
    const bool looks_at_z = in_place || !by_output;
    return ChannelGate<T, V, Act, InPlace, ByOutput>{
        looks_at_z ? load(scale) : V{}, looks_at_z ? load(shift) : V{}, act, in_place, by_output};
  }
};

/// Calls visit(gates) with the gates of an activation. They compute act'(z) from y, or from z if y
/// is null. They work in place if x is null.
template <class T, class R, class Visit>
GLUON_SYNCBN_INLINE void with_gates(const Activation& activation, const T* x, const T* y,
                                    const NormalizationArrays<R>& p, const Visit& visit) {
  using Yes = Always<true>;
  using No = Always<false>;
  if (activation.type == ActType::kNone) {
    if (!x) return visit(Gates<T, R, 2, Identity, Yes, Yes>{p.scale, p.shift, {}, {}, {}});
    return visit(Gates<T, R, 2, Identity, No, Yes>{p.scale, p.shift, {}, {}, {}});
  }
  // The functions of ELU take so long that testing a flag for each vector does not matter.
  if (activation.type == ActType::kElu) {
    return visit(
        Gates<T, R, 3, Elu, bool, bool>{p.scale, p.shift, {activation.slope}, !x, y != nullptr});
  }
  const Rectifier act{activation.slope};
  if (!x) return visit(Gates<T, R, 2, Rectifier, Yes, Yes>{p.scale, p.shift, act, {}, {}});
  if (y) return visit(Gates<T, R, 3, Rectifier, No, Yes>{p.scale, p.shift, act, {}, {}});
  visit(Gates<T, R, 2, Rectifier, No, No>{p.scale, p.shift, act, {}, {}});
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

  /// Returns function(load(array), ...) with one argument for each array.
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

/// The input arrays that a gate needs. If x or y is null, the other one takes its place.
template <class Gates, class T>
GLUON_SYNCBN_INLINE Inputs<T, Gates::kInputs> inputs_of(const T* dy, const T* x, const T* y) {
  if constexpr (Gates::kInputs == 2) {
    return {{dy, x ? x : y}};
  } else {
    return {{dy, x ? x : y, y ? y : x}};
  }
}

/// Computes dz and x - center of a vector of elements. The caller sums dz and dz * (x - center).
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

}  // namespace
}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA

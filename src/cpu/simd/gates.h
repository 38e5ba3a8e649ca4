#ifndef GLUON_SYNCBN_CPU_SIMD_GATES_H_
#define GLUON_SYNCBN_CPU_SIMD_GATES_H_

#include <cstdint>

#include "cpu/simd/activations.h"
#include "cpu/simd/isa.h"
#include "cpu/simd/vectors.h"
#include "norm/activation.h"

namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA {
namespace {

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

template <class V>
struct GateOfInput : OfInput {
  V scale;
  V shift;
  Rectifier act;

  GLUON_SYNCBN_INLINE GateOfInput(V with_scale, V with_shift, Rectifier with_act)
      : scale(with_scale), shift(with_shift), act(with_act) {}

  GLUON_SYNCBN_INLINE V operator()(V dy, V centered, V /*x*/) const {
    return act.gradient(dy, centered * scale + shift);
  }
};

template <class R>
struct GatesOfInput {
  static constexpr int kInputs = 2;
  const R* scale;
  const R* shift;
  Rectifier act;

  template <class Load>
  GLUON_SYNCBN_INLINE auto at(const Load& load) const {
    return GateOfInput<decltype(load(scale))>(load(scale), load(shift), act);
  }
};

struct GateOfOutput : OfInput {
  static constexpr int kInputs = 3;  // dy, x and y
  Rectifier act;

  GLUON_SYNCBN_INLINE explicit GateOfOutput(Rectifier with_act) : act(with_act) {}

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

/// ELU, by whichever array tells z: its functions take so long that its loops may look that up. In
/// place the output stands for x; without an output, x stands for it.
template <class T, class V>
struct EluGate {
  V scale;
  V shift;
  Elu act;
  bool in_place;
  bool by_output;

  GLUON_SYNCBN_INLINE V centered(V x, V center) const {
    return in_place ? (act.template inverse<T>(x) - shift) * scale : x - center;
  }
  GLUON_SYNCBN_INLINE V operator()(V dy, V centered, V /*x*/, V y) const {
    return by_output ? act.gradient_by_output(dy, y) : act.gradient(dy, centered * scale + shift);
  }
};

template <class T, class R>
struct EluGates {
  static constexpr int kInputs = 3;
  const R* scale;
  const R* shift;
  Elu act;
  bool in_place;
  bool by_output;

  template <class Load>
  GLUON_SYNCBN_INLINE auto at(const Load& load) const {
    using V = decltype(load(scale));
    if (!scale) return EluGate<T, V>{V{}, V{}, act, in_place, by_output};
    return EluGate<T, V>{load(scale), load(shift), act, in_place, by_output};
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
  if (activation.type == ActType::kElu) {
    return visit(EluGates<T, R>{p.scale, p.shift, {activation.slope}, !x, y != nullptr});
  }
  const Rectifier act{activation.slope};
  if (!x) return visit(Inverses<T, R, Rectifier>{p.scale, p.shift, act});
  if (y) return visit(GateOfOutput(act));
  visit(GatesOfInput<R>{p.scale, p.shift, act});
}

/// Arrays of which elements at the same place belong together.
template <class T, int kNumber>
struct Inputs {
  const T* arrays[kNumber];

  GLUON_SYNCBN_INLINE Inputs operator+(std::int64_t offset) const {
    Inputs moved{};
#pragma GCC unroll 3
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
    return {{dy, x ? x : y, y ? y : x}};
  }
}

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

}  // namespace
}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA

#endif  // GLUON_SYNCBN_CPU_SIMD_GATES_H_

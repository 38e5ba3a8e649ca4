#pragma once

#include <cstdint>

#include "cpu/simd/activations.h"
#include "cpu/simd/isa.h"
#include "cpu/simd/vectors.h"
#include "norm/activation.h"

// How an output is computed, from the outside to the inside. For dx of a run (runs.h):
//
//   write(out, length, how, value_of)  visits `out`, in whole vectors and then in single elements
//   value_of(like)                     a function of the index, for vectors of one of these types
//   by.at(load)                        the numbers of the channel, or of a vector of columns: a
//                                      Differentiate (for y: a Normalize)
//   (inputs + i).apply(like, f)        loads a vector of each input array, and calls f with them
//   f(dy, x, y)                        that Differentiate, which computes a vector of dx
//   gate(dy, centered, x, y)           dz, which it needs first (activations.h)

namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA {
namespace {

/// Writes out[0, length). value_of(like) gives a function of i that computes the vector of this
/// type that begins with out[i].
///
/// Only whole cache lines are streamed: a line that is partly streamed and partly stored takes many
/// times as long.
template <class T, class ValueOf>
GLUON_SYNCBN_INLINE void write(T* out, std::int64_t length, StoreMode how,
                               const ValueOf& value_of) {
  const auto whole = value_of(Reals<T>{});
  const auto single = value_of(one_like(Reals<T>{}));
  const auto put = [&](const auto& value, std::int64_t i) GLUON_SYNCBN_INLINED {
    auto v = value(i);
    if (how == StoreMode::kAdd) v += load(v, out + i);
    store(out + i, v);
  };
  std::int64_t i = 0;
  constexpr std::int64_t kLine = kLineBytes / static_cast<std::int64_t>(sizeof(T));
  if (how == StoreMode::kStream && length >= 2 * kLine) {
    const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(out));
    const std::int64_t begin =
        (kLineBytes - address % kLineBytes) % kLineBytes / static_cast<std::int64_t>(sizeof(T));
    for (; i < begin; ++i) put(single, i);
    const std::int64_t end = begin + (length - begin) / kLine * kLine;
    for (; i < end; i += kReals<T>) stream(out + i, whole(i));
  }
  for (; i + kReals<T> <= length; i += kReals<T>) put(whole, i);
  for (; i < length; ++i) put(single, i);
}

// Normalize and Differentiate compute outputs for one channel, or for a vector of columns.
// NormalizeBy and DifferentiateBy hold the numbers of all channels, and at(load) makes the former
// of them.

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
  GLUON_SYNCBN_INLINE auto at(const Load& load) const {
    return Normalize<decltype(load(p.center)), Act>{load(p.center), load(p.scale), load(p.shift),
                                                    act};
  }
};

template <class V, class Gate>
struct Differentiate {
  using Bits = decltype(V{} != V{});
  V center;
  V dy_factor;
  V x_factor;
  Bits reads_x;  // 0 where x_factor is 0: a NaN or infinity in x would make a NaN of the product
  V constant;
  Gate gate;

  template <class... Output>
  GLUON_SYNCBN_INLINE V operator()(V dy, V x, Output... y) const {
    const V centered = gate.centered(x, center);
    return dy_factor * gate(dy, centered, x, y...) +
           (x_factor * (V)((Bits)centered & reads_x) + constant);
  }
};

template <class R, class Gates>
struct DifferentiateBy {
  const R* center;
  const InputGradientArrays<R>& p;
  Gates gates;

  template <class Load>
  GLUON_SYNCBN_INLINE auto at(const Load& load) const {
    const auto x_factor = load(p.x_factor);
    return Differentiate<decltype(load(center)), decltype(gates.at(load))>{
        load(center), load(p.dy_factor), x_factor, x_factor != 0, load(p.constant), gates.at(load)};
  }
};

/// Calls visit(inputs, by), where by.at(load) makes the function of these inputs.
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

template <class T>
void shortcut_gradient(const T* dy, const T* y, std::int64_t number, const Activation& activation,
                       StoreMode how, T* dz) {
  with_activation(activation, [&](auto act) GLUON_SYNCBN_INLINED {
    const auto f = [act](auto dy_at, auto y_at)
                       GLUON_SYNCBN_INLINED { return act.gradient_by_output(dy_at, y_at); };
    const Inputs<T, 2> inputs{{dy, y}};
    write(dz, number, how, [&](auto like) GLUON_SYNCBN_INLINED {
      return [&, like](std::int64_t i) GLUON_SYNCBN_INLINED { return (inputs + i).apply(like, f); };
    });
  });
  end_of_stream(how);
}

}  // namespace
}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA

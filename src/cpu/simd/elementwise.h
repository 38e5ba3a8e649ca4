#pragma once

#include <cstdint>

#include "cpu/simd/activations.h"
#include "cpu/simd/isa.h"
#include "cpu/simd/vectors.h"
#include "norm/activation.h"
#include "norm/variants.h"

// How an output is computed, from the outside to the inside. For dx of a run (runs.h):
//
//   write(out, length, how, value_of)  visits `out`, in whole vectors and then in single elements
//   value_of(like)                     a function of the index, for vectors of one of these types
//   n.map(load)                        the coefficients of the channel, or of a vector of columns
//   (inputs + i).apply(like, f, n)     loads a vector of each input array, and calls f with them
//   f(n, dy, x, y)                     computes a vector of dx

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

/// Calls visit(inputs, f), where f(n, x) or f(n, x, shortcut) is y.
template <class T, class Visit>
GLUON_SYNCBN_INLINE void with_normalization(const T* x, const T* shortcut,
                                            const Activation& activation, const Visit& visit) {
  with_y_from(activation.type, shortcut != nullptr, [&](auto variant) GLUON_SYNCBN_INLINED {
    constexpr YFrom kFrom = decltype(variant)::kFrom;
    const auto with = [&](auto act) GLUON_SYNCBN_INLINED {
      const auto f = [act](const auto& n, auto v, auto... more)
                         GLUON_SYNCBN_INLINED { return act.value((n(v) + ... + more)); };
      if constexpr (kFrom == YFrom::kActivatedSum) {
        visit(Inputs<T, 2>{{x, shortcut}}, f);
      } else {
        visit(Inputs<T, 1>{{x}}, f);
      }
    };
    if constexpr (kFrom == YFrom::kX) {
      with(Identity());
    } else {
      with_activation<T>(activation, with);
    }
  });
}

/// Calls visit(inputs, f), where f(n, dy, x) or f(n, dy, x, y) are the terms of the sums.
template <class T, class Visit>
GLUON_SYNCBN_INLINE void with_terms(const BackwardInputs<T>& inputs, const Visit& visit) {
  with_gate(inputs, [&](const auto& gate, const auto& arrays) GLUON_SYNCBN_INLINED {
    visit(arrays, [gate](const auto& n, auto dy, auto x, auto... y) GLUON_SYNCBN_INLINED {
      const auto dz = gate.dz(n, dy, x, y...);
      return Terms<decltype(dy)>{dz, dz * gate.centered(n, x)};
    });
  });
}

/// Calls visit(inputs, f), where f(n, dy, x) or f(n, dy, x, y) is dx.
template <class T, class Visit>
GLUON_SYNCBN_INLINE void with_input_gradient(const BackwardInputs<T>& inputs, const Visit& visit) {
  with_gate(inputs, [&](const auto& gate, const auto& arrays) GLUON_SYNCBN_INLINED {
    visit(arrays, [gate](const auto& n, auto dy, auto x, auto... y) GLUON_SYNCBN_INLINED {
      return n.of_dx(gate.dz(n.of_z(), dy, x, y...), gate.input(x));
    });
  });
}

template <class T>
void shortcut_gradient(const BackwardInputs<T>& inputs, std::int64_t number, StoreMode how, T* dz) {
  with_activation<T>(inputs.activation, [&](auto act) GLUON_SYNCBN_INLINED {
    const auto f = [act](auto /*n*/, auto dy, auto y)
                       GLUON_SYNCBN_INLINED { return act.gradient_by_output(dy, y); };
    const Inputs<T, 2> arrays{{inputs.arrays[0], inputs.arrays[2]}};
    write(dz, number, how, [&](auto like) GLUON_SYNCBN_INLINED {
      return [&, like](std::int64_t i)
                 GLUON_SYNCBN_INLINED { return (arrays + i).apply(like, f, 0); };
    });
  });
  end_of_stream(how);
}

}  // namespace
}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA

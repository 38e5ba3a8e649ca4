#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cuda/kernels/body.h"
#include "norm/activation.h"
#include "norm/coefficients.h"
#include "norm/variants.h"

namespace gluon_syncbn::cuda {

/// The Math of norm/activation.h for GPUs.
template <class R>
struct GpuMath {
  using Number = R;

  static R lanes(R, R number) { return number; }
  static R product(R v, R number) { return number == R(0) ? R(0) : v * number; }
  static R exp(R v) { return std::exp(v); }
  static R expm1(R v) { return std::expm1(v); }
  static R log1p(R v) { return std::log1p(v); }
};

/// NVRTC knows no static member of a parameter.
template <class Act>
constexpr bool kCallsMath = std::decay_t<Act>::kCallsMath;

/// Applies an activation to N elements in registers, which share one branch on its type.
template <class R>
struct Activator : ActFunctions<GpuMath<R>> {
  using ActFunctions<GpuMath<R>>::ActFunctions;

  /// Replaces z by act(z).
  template <int N>
  void activate(R* z) const {
    this->visit([&](const auto& act) {
      replace<N, kCallsMath<decltype(act)>>(z, [&](R each) { return act.value(each); });
    });
  }
  /// Replaces dy by the gradient with respect to z. May overwrite z.
  template <int N>
  void differentiate(R* z, R* dy) const {
    this->visit([&](const auto& act) {
      if constexpr (kCallsMath<decltype(act)>) {
        replace<N, true>(z, [&](R each) { return act.derivative(each); });
        GLUON_SYNCBN_UNROLL
        for (int i = 0; i < N; ++i) dy[i] *= z[i];
      } else {
        GLUON_SYNCBN_UNROLL
        for (int i = 0; i < N; ++i) dy[i] = act.gradient(dy[i], z[i]);
      }
    });
  }
  /// Like differentiate(), but computed from y = act(z), which it keeps.
  template <int N>
  void differentiate_by_output(const R* y, R* dy) const {
    this->visit([&](const auto& act) {
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) dy[i] = act.gradient_by_output(dy[i], y[i]);
    });
  }
  /// Replaces act(z) by z.
  template <int N>
  void invert(R* y) const {
    this->visit([&](const auto& act) {
      replace<N, kCallsMath<decltype(act)>>(y, [&](R each) { return act.inverse(each); });
    });
  }

 private:
  /// Replaces each value by function(value). A long function is compiled once and not N times. The
  /// array rotates, because a variable index would move it to local memory.
  template <int N, bool kIsLong, class Function>
  static void replace(R* values, const Function& function) {
    if constexpr (kIsLong) {
      GLUON_SYNCBN_NO_UNROLL
      for (int turn = 0; turn < N; ++turn) {
        const R first = values[0];
        GLUON_SYNCBN_UNROLL
        for (int i = 0; i + 1 < N; ++i) values[i] = values[i + 1];
        values[N - 1] = function(first);
      }
    } else {
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) values[i] = function(values[i]);
    }
  }
};

/// Copies the k-th of the inputs of N elements to an array, and back.
template <int N, class R, int kInputs>
void take(const R (*elements)[kInputs], int k, R* input) {
  GLUON_SYNCBN_UNROLL
  for (int i = 0; i < N; ++i) input[i] = elements[i][k];
}
template <int N, class R, int kInputs>
void put(const R* input, R (*elements)[kInputs], int k) {
  GLUON_SYNCBN_UNROLL
  for (int i = 0; i < N; ++i) elements[i][k] = input[i];
}

/// The gate of sums of x. It has no numbers: members that `Deviations` does not read keep NVRTC
/// from duplicating its loop for full accesses.
struct NoGate {
  struct Parameters {};
  static constexpr bool kIsActivated = false;
  Parameters parameters;
};

/// Replaces dy by dz, the gradient with respect to the argument of the activation.
template <class R, DzFrom kFrom>
struct Gate {
  using Parameters = ChannelParameters<R>;
  static constexpr bool kIsActivated = kFrom != DzFrom::kDy;
  static constexpr int kInputs = kBackwardInputs<kFrom>;

  Activator<R> act;
  Parameters parameters;
  const Affine<R>* normalizations;

  /// The coefficients of z, of which sums read the center alone. In place, those of its inverse.
  Affine<R> at(std::uint32_t c) const {
    if constexpr (kFrom == DzFrom::kZ) {
      return normalizations[c];
    } else if constexpr (kFrom == DzFrom::kInPlace) {
      return Affine<R>::of_inverse(gamma_of(parameters.gamma, c), parameters.beta[c]);
    } else {
      return {static_cast<R>(parameters.mean[c]), R(0), R(0)};
    }
  }
  /// Replaces dy in N elements, and in place y by z. Element i belongs to channel i % kNumber, and
  /// `of_z` has the coefficients of z.
  template <int N, int kNumber>
  void apply(const Affine<R>* of_z, R (*elements)[kInputs]) const {
    if constexpr (kFrom == DzFrom::kDy) return;
    R dy[N];
    R other[N];
    take<N>(elements, 0, dy);
    if constexpr (kFrom == DzFrom::kZ) {
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) other[i] = of_z[i % kNumber](elements[i][1]);
      act.template differentiate<N>(other, dy);
    } else {
      take<N>(elements, kInputs - 1, other);
      act.template differentiate_by_output<N>(other, dy);
    }
    if constexpr (kFrom == DzFrom::kInPlace) {
      act.template invert<N>(other);
      put<N>(other, elements, 1);
    }
    put<N>(dy, elements, 0);
  }
};

}  // namespace gluon_syncbn::cuda

#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cuda/kernels/body.h"
#include "cuda/kernels/numbers.h"
#include "norm/activation.h"
#include "norm/per_channel.h"

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

 protected:
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

/// An activation that can be inverted.
template <class R>
struct Inverter : Activator<R> {
  R lowest;  // the lowest z that is recoverable from the output of ELU

  /// T is the type that outputs are rounded to.
  template <class T>
  static Inverter of(const Activation& activation) {
    return {Activator<R>(activation), static_cast<R>(kSaturation<T>)};
  }

  /// Replaces act(z) by z.
  template <int N>
  void invert(R* y) const {
    this->visit([&](const auto& act) {
      Activator<R>::template replace<N, kCallsMath<decltype(act)>>(
          y, [&](R each) { return act.inverse(each, lowest); });
    });
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

// A gate replaces dy by dz, the gradient with respect to the argument of the activation, for the
// sums of a backward pass. It has
//
//   kIsActivated               whether there is an activation
//   kInputs                    the number of input arrays. 2: dy and x, or in place dy and y.
//                              3: dy, x and y.
//   Channel                    the numbers of a channel that the gate needs
//   at(mean, c, center)        returns the Channel c. Sets `center` to what the sums subtract from
//                              the second input: its mean, or in place 0.
//   apply<N, kNumber>(channels, center, elements)
//                              replaces dy in N elements; element i belongs to channel i % kNumber

template <class R>
struct NoGate {
  static constexpr bool kIsActivated = false;
  static constexpr int kInputs = 2;
  struct Channel {};

  Channel at(const double* mean, std::uint32_t c, R* center) const {
    *center = static_cast<R>(mean[c]);
    return {};
  }
  template <int N, int kNumber, class Elements>
  void apply(const Channel*, const R*, Elements*) const {}
};

/// Computes dz from z, and z again from x.
template <class R>
struct GateByInput {
  static constexpr bool kIsActivated = true;
  static constexpr int kInputs = 2;
  struct Channel {
    R scale;
    R shift;
  };

  Activator<R> activator;
  const StoredAffine<R>* normalizations;  // of channels

  Channel at(const double*, std::uint32_t c, R* center) const {
    const StoredAffine<R> of_channel = normalizations[c];
    *center = of_channel.mean;
    return {of_channel.scale, of_channel.shift};
  }
  template <int N, int kNumber>
  void apply(const Channel* channels, const R* center, R (*elements)[kInputs]) const {
    R dy[N];
    R z[N];
    take<N>(elements, 0, dy);
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < N; ++i) {
      const int n = i % kNumber;
      z[i] = Affine<R>{center[n], channels[n].scale, channels[n].shift}.of(&elements[i][1]);
    }
    activator.template differentiate<N>(z, dy);
    put<N>(dy, elements, 0);
  }
};

/// Computes dz from the output.
template <class R>
struct GateByOutput : NoGate<R> {
  static constexpr bool kIsActivated = true;
  static constexpr int kInputs = 3;
  using Channel = typename NoGate<R>::Channel;

  Activator<R> activator;

  template <int N, int kNumber>
  void apply(const Channel*, const R*, R (*elements)[kInputs]) const {
    R dy[N];
    R y[N];
    take<N>(elements, 0, dy);
    take<N>(elements, 2, y);
    activator.template differentiate_by_output<N>(y, dy);
    put<N>(dy, elements, 0);
  }
};

/// In place: computes dz and the normalized input from the output.
template <class R>
struct GateInPlace {
  static constexpr bool kIsActivated = true;
  static constexpr int kInputs = 2;  // dy, y
  struct Channel {
    R beta;
    R inverse_gamma;
  };

  Inverter<R> inverter;
  const R* gamma;  // null: 1
  const R* beta;

  Channel at(const double*, std::uint32_t c, R* center) const {
    *center = R(0);
    return {beta[c], R(1) / gamma_of(gamma, c)};
  }
  /// Also replaces y by (x - mean) / sqrt(variance + eps).
  template <int N, int kNumber>
  void apply(const Channel* channels, const R*, R (*elements)[kInputs]) const {
    recover<N>(elements);
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < N; ++i) {
      const Channel& channel = channels[i % kNumber];
      elements[i][1] = (elements[i][1] - channel.beta) * channel.inverse_gamma;
    }
  }
  /// Replaces dy by dz, and y by z.
  template <int N>
  void recover(R (*elements)[kInputs]) const {
    R dy[N];
    R y[N];
    take<N>(elements, 0, dy);
    take<N>(elements, 1, y);
    inverter.template differentiate_by_output<N>(y, dy);
    inverter.template invert<N>(y);
    put<N>(dy, elements, 0);
    put<N>(y, elements, 1);
  }
};

}  // namespace gluon_syncbn::cuda

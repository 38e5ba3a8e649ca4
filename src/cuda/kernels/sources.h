#pragma once

#include <cstdint>

#include "cuda/kernels/activations.h"
#include "cuda/kernels/body.h"
#include "cuda/kernels/numbers.h"

// A source defines the outputs of a kernel (elementwise.h). It has
//
//   kName, Values              for messages; the numbers of a channel that outputs need
//   kIsActivated               whether there is an activation
//   kInputs, kOutputs          the number of input and output arrays
//   at(c)                      returns the Values of a channel
//   outputs<N, kNumber>(values, elements, results)
//                              computes the outputs of N elements, and may overwrite `elements`;
//                              element i belongs to channel i % kNumber

namespace gluon_syncbn::cuda {

/// Applies the values of its channel to each of N elements.
template <int N, int kNumber, class Values, class R, int kInputs>
void each_of(const Values* values, R (*elements)[kInputs], R* results) {
  GLUON_SYNCBN_UNROLL
  for (int i = 0; i < N; ++i) results[i] = values[i % kNumber].of(elements[i]);
}

/// A source of one output, without an activation. V::of() computes an element.
template <class V>
struct Plain {
  static constexpr bool kIsActivated = false;
  static constexpr int kOutputs = 1;
  using Values = V;

  const V* of_channels;

  V at(std::int64_t c) const { return of_channels[c]; }

  template <int N, int kNumber, class R, int kInputs>
  void outputs(const V* values, R (*elements)[kInputs], R (*results)[N]) const {
    each_of<N, kNumber>(values, elements, results[0]);
  }
};

/// Computes y from x.
template <class R>
struct Normalization : Plain<StoredAffine<R>> {
  static constexpr const char* kName = "normalization";
  static constexpr int kInputs = 1;  // x
};

/// Computes y = act(z), or act(z + shortcut).
template <class R, bool kShortcut>
struct ActivatedNormalization : Normalization<R> {
  static constexpr bool kIsActivated = true;
  static constexpr int kInputs = kShortcut ? 2 : 1;  // x and the shortcut
  using Values = StoredAffine<R>;

  Activator<R> activator;

  template <int N, int kNumber>
  void outputs(const Values* values, R (*elements)[kInputs], R (*results)[N]) const {
    each_of<N, kNumber>(values, elements, results[0]);
    if constexpr (kShortcut) {
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) results[0][i] += elements[i][1];
    }
    activator.template activate<N>(results[0]);
  }
};

/// Computes dx from dy and x.
template <class R>
struct InputGradient : Plain<Gradient<R>> {
  static constexpr const char* kName = "input gradient";
  static constexpr int kInputs = 2;  // dy, x
};

/// Computes dx. The gate computes z again, as (x - mean) * dy_factor + shift.
template <class R>
struct InputGradientByInput : InputGradient<R> {
  static constexpr bool kIsActivated = true;
  struct Values : Gradient<R> {
    R shift;
  };

  GateByInput<R> gate;

  Values at(std::int64_t c) const { return {this->of_channels[c], gate.normalizations[c].shift}; }

  template <int N, int kNumber>
  void outputs(const Values* values, R (*elements)[2], R (*results)[N]) const {
    R centers[kNumber];
    typename GateByInput<R>::Channel channels[kNumber];
    GLUON_SYNCBN_UNROLL
    for (int n = 0; n < kNumber; ++n) {
      centers[n] = values[n].mean;
      channels[n] = {values[n].dy_factor, values[n].shift};
    }
    gate.template apply<N, kNumber>(channels, centers, elements);
    each_of<N, kNumber>(values, elements, results[0]);
  }
};

/// Computes dx and the gradient of the shortcut, which is dz. The gate reads the output y.
template <class R>
struct InputGradientByOutput : InputGradient<R> {
  static constexpr bool kIsActivated = true;
  static constexpr int kInputs = 3;  // dy, x, y
  static constexpr int kOutputs = 2;
  using Values = Gradient<R>;

  GateByOutput<R> gate;

  template <int N, int kNumber>
  void outputs(const Values* values, R (*elements)[kInputs], R (*results)[N]) const {
    gate.template apply<N, 1>(nullptr, nullptr, elements);
    each_of<N, kNumber>(values, elements, results[0]);
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < N; ++i) results[1][i] = elements[i][0];
  }
};

/// Computes dx in place. The kernel reads the output y instead of x, and recovers z. The mean and
/// the x_factor of the values apply to z.
template <class R>
struct InputGradientInPlace : InputGradient<R> {
  static constexpr bool kIsActivated = true;
  using Values = Gradient<R>;

  GateInPlace<R> gate;

  template <int N, int kNumber>
  void outputs(const Values* values, R (*elements)[2], R (*results)[N]) const {
    gate.template recover<N>(elements);
    each_of<N, kNumber>(values, elements, results[0]);
  }
};

}  // namespace gluon_syncbn::cuda

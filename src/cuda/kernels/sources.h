#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/activations.h"
#include "cuda/kernels/body.h"
#include "norm/activation.h"
#include "norm/coefficients.h"
#include "norm/variants.h"

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

/// Has no numbers, as NoGate.
struct NoActivator {
  NoActivator(const Activation&, double) {}
};

/// Computes y = z, act(z), or act(z + shortcut).
template <class R, YFrom kFrom>
struct Normalization {
  static constexpr const char* kName = "normalization";
  static constexpr bool kIsActivated = kFrom != YFrom::kX;
  static constexpr int kInputs = kFrom == YFrom::kActivatedSum ? 2 : 1;  // x and the shortcut
  static constexpr int kOutputs = 1;
  using Values = Affine<R>;

  const Affine<R>* of_channels;
  std::conditional_t<kIsActivated, Activator<R>, NoActivator> act;

  Affine<R> at(std::int64_t c) const { return of_channels[c]; }

  template <int N, int kNumber>
  void outputs(const Affine<R>* of_z, R (*elements)[kInputs], R (*results)[N]) const {
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < N; ++i) {
      results[0][i] = of_z[i % kNumber](elements[i][0]);
      if constexpr (kInputs > 1) results[0][i] += elements[i][1];
    }
    if constexpr (kIsActivated) act.template activate<N>(results[0]);
  }
};

/// Computes dx. From the output, also computes the gradient of the shortcut, which is dz.
template <class R, DzFrom kFrom>
struct InputGradient {
  static constexpr const char* kName = "input gradient";
  static constexpr bool kIsActivated = kFrom != DzFrom::kDy;
  static constexpr int kInputs = kBackwardInputs<kFrom>;
  static constexpr int kOutputs = kFrom == DzFrom::kOutput ? 2 : 1;
  using Values = GradientAndShift<R>;

  const Gradient<R>* of_channels;
  Gate<R, kFrom> gate;

  Values at(std::int64_t c) const {
    return {of_channels[c], kFrom == DzFrom::kZ ? gate.normalizations[c].shift : R(0)};
  }

  template <int N, int kNumber>
  void outputs(const Values* values, R (*elements)[kInputs], R (*results)[N]) const {
    Affine<R> of_z[kNumber];
    GLUON_SYNCBN_UNROLL
    for (int n = 0; n < kNumber; ++n) of_z[n] = values[n].of_z();
    gate.template apply<N, kNumber>(of_z, elements);
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < N; ++i) {
      results[0][i] = values[i % kNumber].of_dx(elements[i][0], elements[i][1]);
      if constexpr (kOutputs > 1) results[1][i] = elements[i][0];
    }
  }
};

}  // namespace gluon_syncbn::cuda

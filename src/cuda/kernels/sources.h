#ifndef GLUON_SYNCBN_CUDA_KERNELS_SOURCES_H_
#define GLUON_SYNCBN_CUDA_KERNELS_SOURCES_H_

#include <cstdint>

#include "cuda/kernels/activations.h"
#include "cuda/kernels/body.h"
#include "cuda/kernels/numbers.h"

// Sources, by which the kernels of outputs (elementwise.h) compute, have
//
//   kName, Values              for messages; what an output needs of a channel
//   kIsActivated               whether an activation is part of it
//   kInputs, kOutputs          arrays that are read, and written
//   at(c)                      the Values of a channel
//   outputs<N, kNumber>(values, elements, results)
//                              the outputs of N elements, of kNumber channels in turn

namespace gluon_syncbn::cuda {

/// What `values` give for each of N elements.
template <int N, int kNumber, class Values, class R, int kInputs>
GLUON_SYNCBN_HOST_DEVICE void each_of(const Values* values, R (*elements)[kInputs], R* results) {
  GLUON_SYNCBN_UNROLL
  for (int i = 0; i < N; ++i) results[i] = values[i % kNumber].of(elements[i]);
}

/// y from x.
template <class R>
struct Normalization {
  static constexpr const char* kName = "normalization";
  static constexpr bool kIsActivated = false;
  static constexpr int kInputs = 1;  // x
  static constexpr int kOutputs = 1;
  using Values = StoredAffine<R>;

  const StoredAffine<R>* normalizations;  // of channels

  GLUON_SYNCBN_HOST_DEVICE Values at(std::int64_t c) const { return normalizations[c]; }

  template <int N, int kNumber>
  GLUON_SYNCBN_HOST_DEVICE void outputs(const Values* values, R (*elements)[kInputs],
                                        R (*results)[N]) const {
    each_of<N, kNumber>(values, elements, results[0]);
  }
};

/// Followed by an activation, perhaps after a shortcut is added.
template <class R, bool kShortcut>
struct ActivatedNormalization : Normalization<R> {
  static constexpr bool kIsActivated = true;
  static constexpr int kInputs = kShortcut ? 2 : 1;  // x and the shortcut
  using Values = StoredAffine<R>;

  Activator<R> activator;

  template <int N, int kNumber>
  GLUON_SYNCBN_HOST_DEVICE void outputs(const Values* values, R (*elements)[kInputs],
                                        R (*results)[N]) const {
    each_of<N, kNumber>(values, elements, results[0]);
    if constexpr (kShortcut) {
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) results[0][i] += elements[i][1];
    }
    activator.template activate<N>(results[0]);
  }
};

/// dx from dy and x.
template <class R>
struct InputGradient {
  static constexpr const char* kName = "input gradient";
  static constexpr bool kIsActivated = false;
  static constexpr int kInputs = 2;  // dy, x
  static constexpr int kOutputs = 1;
  using Values = Gradient<R>;

  const Gradient<R>* gradients;  // of channels

  GLUON_SYNCBN_HOST_DEVICE Values at(std::int64_t c) const { return gradients[c]; }

  template <int N, int kNumber>
  GLUON_SYNCBN_HOST_DEVICE void outputs(const Values* values, R (*elements)[kInputs],
                                        R (*results)[N]) const {
    each_of<N, kNumber>(values, elements, results[0]);
  }
};

/// Followed by an activation, by the normalization, computed again. Its scale is dy_factor.
template <class R>
struct InputGradientByInput : InputGradient<R> {
  static constexpr bool kIsActivated = true;
  struct Values : Gradient<R> {
    R shift;
  };

  GateByInput<R> gate;

  GLUON_SYNCBN_HOST_DEVICE Values at(std::int64_t c) const {
    return {this->gradients[c], gate.normalizations[c].shift};
  }

  template <int N, int kNumber>
  GLUON_SYNCBN_HOST_DEVICE void outputs(const Values* values, R (*elements)[2],
                                        R (*results)[N]) const {
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

/// Followed by an activation, by the output, with the gradient of a shortcut.
template <class R>
struct InputGradientByOutput : InputGradient<R> {
  static constexpr bool kIsActivated = true;
  static constexpr int kInputs = 3;  // dy, x, y
  static constexpr int kOutputs = 2;
  using Values = Gradient<R>;

  GateByOutput<R> gate;

  template <int N, int kNumber>
  GLUON_SYNCBN_HOST_DEVICE void outputs(const Values* values, R (*elements)[kInputs],
                                        R (*results)[N]) const {
    gate.template apply<N, 1>(nullptr, nullptr, elements);
    each_of<N, kNumber>(values, elements, results[0]);
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < N; ++i) results[1][i] = elements[i][0];
  }
};

/// In place: z is recovered from the output y, which is read instead of x. Of the values, mean is
/// that of z and x_factor the factor of z.
template <class R>
struct InputGradientInPlace : InputGradient<R> {
  static constexpr bool kIsActivated = true;
  using Values = Gradient<R>;

  GateInPlace<R> gate;

  template <int N, int kNumber>
  GLUON_SYNCBN_HOST_DEVICE void outputs(const Values* values, R (*elements)[2],
                                        R (*results)[N]) const {
    gate.template recover<N>(elements);
    each_of<N, kNumber>(values, elements, results[0]);
  }
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_KERNELS_SOURCES_H_

#pragma once

#include <cstddef>
#include <cstdint>

#include "common/inline.h"

// The coefficients of a channel, for all kinds of device. The formulas are those of S. Ioffe and
// C. Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal
// Covariate Shift", 2015, algorithm 1 and section 3.
//
// of() computes the coefficients in double, and rounds them to N, the type in which kernels
// compute. map() gives the same coefficients of other types: pointers to arrays with a number per
// channel or per column, or vectors of several columns.

namespace gluon_syncbn {

/// The gamma of a channel. `gamma` is null for 1.
template <class P>
P gamma_of(const P* gamma, std::int64_t c) {
  return gamma ? gamma[c] : P(1);
}

/// The arrays from which the coefficients of all channels are computed.
template <class P>
struct ChannelParameters {
  const double* mean;
  const double* inv_std;
  const P* gamma;  ///< null: 1
  const P* beta;   ///< may be null if nothing computes z
};

/// The factor of x in z.
inline double scale_of(double gamma, double inv_std) { return gamma * inv_std; }

/// The difference between the mean and its value rounded to N: x - mean is (x - N(mean)) - rest.
/// The kernels add the rest, times its factor, to their constant term. So the result is exact to N
/// even if the mean is thousands of standard deviations from zero.
template <class N>
double rest_of(double mean) {
  return mean - static_cast<double>(static_cast<N>(mean));
}

/// GPUs load 16 bytes at a time. A vector may need more.
template <class N>
constexpr std::size_t kAlignment = alignof(N) > 16 ? alignof(N) : 16;

/// The coefficients of (v - center) * scale + shift: of z, where v is x, or of its inverse, where v
/// is z.
template <class N>
struct alignas(kAlignment<N>) Affine {
  N center;
  N scale;
  N shift;

  static Affine of(double mean, double inv_std, double gamma, double beta) {
    const double scale = scale_of(gamma, inv_std);
    return {static_cast<N>(mean), static_cast<N>(scale),
            static_cast<N>(beta - rest_of<N>(mean) * scale)};
  }
  /// The coefficients of (z - beta) / gamma, which is (x - mean) * inv_std. Computes in N.
  static Affine of_inverse(N gamma, N beta) { return {beta, N(1) / gamma, N(0)}; }

  template <class V>
  GLUON_SYNCBN_INLINE V operator()(V x) const {
    return (x - center) * scale + shift;
  }
  /// Calls f with each coefficient, and with the coefficients of the same name of `others`. Returns
  /// the results.
  template <class F, class... Others>
  GLUON_SYNCBN_INLINE auto map(const F& f, const Others&... others) const {
    return Affine<decltype(f(center, others.center...))>{
        f(center, others.center...), f(scale, others.scale...), f(shift, others.shift...)};
  }
};

/// The coefficients of dx = dz * scale + (x - center) * x_factor + constant, with the scale of z.
/// In place, z takes the place of x.
template <class N>
struct alignas(kAlignment<N>) Gradient {
  N center;
  N scale;
  N x_factor;
  N constant;

  /// `dz` and `dz_centered` are the sums of dz and of dz * (x - mean) on all devices, whose
  /// channels have `count` elements. `count` is 0 if the running statistics were used, which do not
  /// depend on x.
  template <class P>
  static Gradient of(const ChannelParameters<P>& parameters, std::int64_t c, double dz,
                     double dz_centered, double count, bool inplace) {
    const double inv_std = parameters.inv_std[c];
    const double center = inplace ? static_cast<double>(parameters.beta[c]) : parameters.mean[c];
    const double scale = scale_of(static_cast<double>(gamma_of(parameters.gamma, c)), inv_std);
    double x_factor = 0;
    double constant = 0;
    if (count > 0) {
      const double share = -1 / count;
      // x - mean is (z - beta) / scale.
      x_factor = share * (inplace ? 1 : scale) * dz_centered * inv_std * inv_std;
      constant = share * scale * dz;
      // Without an x_factor the mean may be infinite or NaN.
      if (!inplace && x_factor != 0) constant -= rest_of<N>(center) * x_factor;
    }
    return {static_cast<N>(center), static_cast<N>(scale), static_cast<N>(x_factor),
            static_cast<N>(constant)};
  }

  /// If x_factor is 0, a NaN or infinity in x does not matter.
  template <class V>
  GLUON_SYNCBN_INLINE V operator()(V dz, V x) const {
    const V centered = x_factor == 0 ? V{} : x - center;
    return scale * dz + (x_factor * centered + constant);
  }
  template <class F, class... Others>
  GLUON_SYNCBN_INLINE auto map(const F& f, const Others&... others) const {
    return Gradient<decltype(f(center, others.center...))>{
        f(center, others.center...), f(scale, others.scale...), f(x_factor, others.x_factor...),
        f(constant, others.constant...)};
  }
};

/// The coefficients of dx, which have a center and a scale in common with those of z.
template <class N>
struct GradientAndShift {
  Gradient<N> of_dx;
  N shift;

  GLUON_SYNCBN_INLINE Affine<N> of_z() const { return {of_dx.center, of_dx.scale, shift}; }
  template <class F, class... Others>
  GLUON_SYNCBN_INLINE auto map(const F& f, const Others&... others) const {
    return GradientAndShift<decltype(f(shift, others.shift...))>{of_dx.map(f, others.of_dx...),
                                                                 f(shift, others.shift...)};
  }
};

}  // namespace gluon_syncbn

#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "common/dtype.h"
#include "norm/activation.h"

namespace gluon_syncbn {

/// Whether z is recoverable from the output of an activation.
bool is_invertible(const Activation& activation);
/// The activations for which is_invertible() holds: "None, or 'leaky' or 'elu' with a slope above
/// 0".
std::string invertible_activations();

/// Whether the input of a channel is recoverable from its output, as a layer with inplace=True
/// needs.
///
/// The normalized input is (z - beta) / gamma. The error of z is divided by gamma too, so a small
/// gamma makes it large. Half of the digits of the dtype must be left.
struct Invertible {
  double rounding;   ///< the error of z, relative to beta
  double underflow;  ///< the error of a small z
  double tolerance;  ///< the largest error allowed in the normalized input

  /// `activation` must have an inverse.
  static Invertible of(DType dtype, const Activation& activation);

  /// |gamma| must be greater than this.
  double least_gamma(double beta) const {
    return (rounding * std::fabs(beta) + underflow) / tolerance;
  }
  /// A gamma or beta that is not finite proves nothing, so it passes.
  bool holds(double gamma, double beta) const {
    const double above = least_gamma(beta);
    return !(std::fabs(gamma) <= above && above < HUGE_VAL);
  }
  /// The error message for a channel for which holds() is false.
  std::string error(std::int64_t channel, double gamma, double beta) const;
};

}  // namespace gluon_syncbn

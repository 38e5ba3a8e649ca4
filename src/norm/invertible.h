#ifndef GLUON_SYNCBN_NORM_INVERTIBLE_H_
#define GLUON_SYNCBN_NORM_INVERTIBLE_H_

#include <cmath>
#include <cstdint>
#include <string>

#include "common/dtype.h"
#include "common/host_device.h"
#include "norm/activation.h"

namespace gluon_syncbn {

/// In place, beta and the output of a channel have to tell its input to half of the digits of the
/// dtype, which they do not if gamma is small: z is gamma * normalized input + beta, and what is
/// wrong with z is divided by gamma.
struct Invertible {
  double rounding;   ///< error of z, relative to beta
  double underflow;  ///< and of small z
  double tolerance;  ///< for the normalized input

  /// For an activation that can be inverted.
  static Invertible of(DType dtype, const Activation& activation);

  /// What |gamma| has to be above.
  GLUON_SYNCBN_HOST_DEVICE double least_gamma(double beta) const {
    return (rounding * std::fabs(beta) + underflow) / tolerance;
  }
  /// What is not finite does not tell either way.
  GLUON_SYNCBN_HOST_DEVICE bool holds(double gamma, double beta) const {
    const double above = least_gamma(beta);
    return !(std::fabs(gamma) <= above && above < HUGE_VAL);
  }
  /// What is wrong with a channel for which it does not hold.
  std::string error(std::int64_t channel, double gamma, double beta) const;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_NORM_INVERTIBLE_H_

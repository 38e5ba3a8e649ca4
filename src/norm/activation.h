#ifndef GLUON_SYNCBN_NORM_ACTIVATION_H_
#define GLUON_SYNCBN_NORM_ACTIVATION_H_

#include "common/dtype.h"

namespace gluon_syncbn {

/// What follows the normalization z, with MXNet's names. Layers with a shortcut need one whose
/// output tells the derivative. Backends take all but ELU for a slope: a new one needs a case in
/// their activations.h.
enum class ActType {
  kNone,   ///< z
  kRelu,   ///< max(z, 0)
  kLeaky,  ///< z if z > 0, otherwise slope * z
  kElu,    ///< z if z > 0, otherwise slope * (exp(z) - 1)
};

/// At 0 the derivative is that from below, as in MXNet.
struct Activation {
  ActType type = ActType::kNone;
  double slope = 0;  ///< 0 or greater, so that the sign of the output is that of z; 0 for ReLU
};

/// Where expm1() becomes -1 in T: the logarithm of half the distance to the next number. What the
/// output of ELU tells of z ends here.
template <class T>
inline constexpr double kSaturation = -0.693147180559945309 * (kDigits<T> + 1);

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_NORM_ACTIVATION_H_

#pragma once

#include "common/dtype.h"

namespace gluon_syncbn {

/// The activation of the normalized value z, by MXNet's names. A layer with a shortcut needs an
/// activation whose derivative is computable from its output. Backends treat all types but ELU as
/// lines with a slope below 0. A new type needs a case in cpu/simd/activations.h,
/// cpu/simd/activation_gates.h and cuda/kernels/activations.h. It also needs a row in kActTypes and
/// in gluon_syncbn/activations.py.
enum class ActType {
  kNone,   ///< z
  kRelu,   ///< max(z, 0)
  kLeaky,  ///< z if z > 0, otherwise slope * z
  kElu,    ///< z if z > 0, otherwise slope * (exp(z) - 1)
};

/// The derivative at 0 is the one from below, as in MXNet.
struct Activation {
  ActType type = ActType::kNone;
  double slope = 0;  ///< 0 or greater, so that the sign of the output is that of z; 0 for ReLU
};

/// The properties of a type.
struct ActTypeTraits {
  ActType type;
  const char* name;  ///< in the operator's attribute act_type
  bool has_slope;
  bool is_invertible;  ///< if its slope is above 0
};

inline constexpr ActTypeTraits kActTypes[] = {{ActType::kNone, "None", false, true},
                                              {ActType::kRelu, "relu", false, false},
                                              {ActType::kLeaky, "leaky", true, true},
                                              {ActType::kElu, "elu", true, true}};

/// Whether z is recoverable from the output.
inline bool is_invertible(const Activation& activation) {
  for (const ActTypeTraits& each : kActTypes) {
    if (each.type != activation.type) continue;
    return each.is_invertible && (!each.has_slope || activation.slope > 0);
  }
  return false;
}

/// The z below which expm1(z) rounds to -1 in T: the logarithm of half the distance from 1 to the
/// number before it. A lower z is not recoverable from the output of ELU.
template <class T>
inline constexpr double kSaturation = -0.693147180559945309 * (kDigits<T> + 1);

}  // namespace gluon_syncbn

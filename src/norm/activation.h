#pragma once

#include "common/dtype.h"
#include "common/inline.h"

namespace gluon_syncbn {

/// The activation of the normalized value z, by MXNet's names. A layer with a shortcut needs an
/// activation whose derivative is computable from its output. A new type needs a row in kActTypes,
/// a struct of functions, a case in ActFunctions::visit(), and a row in
/// gluon_syncbn/activations.py. If it is invertible, Invertible::of() must know how flat it is.
enum class ActType {
  kNone,   ///< z
  kRelu,   ///< max(z, 0)
  kLeaky,  ///< z if z > 0, otherwise slope * z
  kElu,    ///< z if z > 0, otherwise slope * (exp(z) - 1)
};

/// The derivative at 0 is the one from below, as in MXNet.
struct Activation {
  ActType type = ActType::kNone;
  double slope = 0;  ///< at least 0, so that the output is above 0 only if z is; 0 for ReLU
};

/// The properties of a type.
struct ActTypeTraits {
  ActType type;
  const char* name;  ///< in the operator's attribute act_type
  bool has_slope;
  bool is_invertible;  ///< with a slope above 0, if it has one
};

inline constexpr ActTypeTraits kActTypes[] = {{ActType::kNone, "None", false, true},
                                              {ActType::kRelu, "relu", false, false},
                                              {ActType::kLeaky, "leaky", true, true},
                                              {ActType::kElu, "elu", true, true}};

const ActTypeTraits& traits_of(ActType type);

/// The z below which expm1(z) rounds to -1 in T: the logarithm of half the distance from 1 to the
/// number before it. A lower z is not recoverable from the output of ELU.
template <class T>
inline constexpr double kSaturation = -0.693147180559945309 * (kDigits<T> + 1);

// The functions of each activation, for all devices. V is a number or a vector of numbers. Math,
// which is cpu::VectorMath or cuda::GpuMath, has what C++ has no operators for:
//
//   Number               the type of the slope
//   lanes(like, number)  a value of the type of `like` with `number` in each lane
//   product(v, number)   v * number; 0 if `number` is 0, even if v is infinite
//   exp, expm1, log1p    of a V
//
// A struct of functions has
//
//   kCallsMath                  whether it calls exp, expm1 or log1p
//   value(z)                    the output for z
//   gradient(dy, z)             the gradient with respect to z, computed from z
//   gradient_by_output(dy, y)   the same gradient, computed from the output
//   inverse(y)                  z, computed from the output. For ELU at least kSaturation of the
//                               type that y was rounded to.
//   derivative(z)               only if kCallsMath
//
// value() and inverse() keep a NaN. On CPUs, Math must be in an unnamed namespace; cpu/simd/isa.h
// says why.

/// ReLU, leaky or not.
template <class Math>
struct Rectifier {
  static constexpr bool kCallsMath = false;
  using Number = typename Math::Number;
  Number slope;
  Number inverse_slope;

  template <class V>
  GLUON_SYNCBN_INLINE V value(V z) const {
    return z < 0 ? Math::product(z, slope) : z;
  }
  template <class V>
  GLUON_SYNCBN_INLINE V gradient(V dy, V z) const {
    return z > 0 ? dy : Math::product(dy, slope);
  }
  template <class V>
  GLUON_SYNCBN_INLINE V gradient_by_output(V dy, V y) const {
    return gradient(dy, y);
  }
  template <class V>
  GLUON_SYNCBN_INLINE V inverse(V y) const {
    return y < 0 ? y * Math::lanes(y, inverse_slope) : y;
  }
};

template <class Math>
struct Elu {
  static constexpr bool kCallsMath = true;
  using Number = typename Math::Number;
  Number slope;
  Number inverse_slope;
  Number lowest;  // z that inverse() gives

  template <class V>
  GLUON_SYNCBN_INLINE V value(V z) const {
    return z > 0 ? z : Math::lanes(z, slope) * Math::expm1(z > 0 ? V{} : z);
  }
  template <class V>
  GLUON_SYNCBN_INLINE V derivative(V z) const {
    return z > 0 ? Math::lanes(z, 1) : Math::lanes(z, slope) * Math::exp(z > 0 ? V{} : z);
  }
  template <class V>
  GLUON_SYNCBN_INLINE V gradient(V dy, V z) const {
    return dy * derivative(z);
  }
  template <class V>
  GLUON_SYNCBN_INLINE V gradient_by_output(V dy, V y) const {
    return y > 0 ? dy : dy * (y + Math::lanes(y, slope));
  }
  template <class V>
  GLUON_SYNCBN_INLINE V inverse(V y) const {
    const V ratio = y > 0 ? V{} : y * Math::lanes(y, inverse_slope);
    const V z = Math::log1p(ratio < -1 ? Math::lanes(y, -1) : ratio);
    const V least = Math::lanes(y, lowest);
    return y > 0 ? y : z < least ? least : z;
  }
};

/// Chooses the functions of an activation, and holds their numbers.
template <class Math>
struct ActFunctions {
  using Number = typename Math::Number;
  ActType type;
  Number slope;
  Number inverse_slope;
  Number lowest;

  /// `saturation` is kSaturation of the type of outputs.
  ActFunctions(const Activation& activation, double saturation)
      : type(activation.type), lowest(static_cast<Number>(saturation)) {
    const double slope_below = type == ActType::kNone ? 1 : activation.slope;
    slope = static_cast<Number>(slope_below);
    // Infinite for slope 0, which has no inverse.
    inverse_slope = static_cast<Number>(1 / slope_below);
  }

  /// Calls visit(functions). Those of kNone are a Rectifier of slope 1.
  template <class Visit>
  GLUON_SYNCBN_INLINE void visit(const Visit& visit) const {
    if (type == ActType::kElu) return visit(Elu<Math>{slope, inverse_slope, lowest});
    visit(Rectifier<Math>{slope, inverse_slope});
  }
};

}  // namespace gluon_syncbn

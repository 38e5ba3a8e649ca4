#pragma once

#include "common/inline.h"
#include "norm/activation.h"

// The variants of forward and backward. Each has its own kernels.

namespace gluon_syncbn {

/// The source of y.
enum class YFrom {
  kX,            ///< y is z
  kActivated,    ///< y is act(z)
  kActivatedSum  ///< y is act(z + shortcut)
};

/// The source of dz, the gradient with respect to the argument of the activation. The argument is
/// z, or z + shortcut.
enum class DzFrom {
  kDy,       ///< dz is dy
  kZ,        ///< dz is computed from dy and z, and z again from x
  kOutput,   ///< dz is computed from dy and y: x does not give z + shortcut
  kInPlace,  ///< dz is computed from dy and y, and y takes the place of x
};

constexpr DzFrom dz_from(ActType act_type, bool has_shortcut, bool inplace) {
  if (inplace) return DzFrom::kInPlace;
  if (act_type == ActType::kNone) return DzFrom::kDy;
  return has_shortcut ? DzFrom::kOutput : DzFrom::kZ;
}

/// The arrays that backward reads beside gamma and the gradient of the output.
struct BackwardReads {
  bool data;
  bool beta;
  bool output;
};

constexpr BackwardReads reads_of(DzFrom from) {
  const bool inplace = from == DzFrom::kInPlace;
  return {!inplace, inplace || from == DzFrom::kZ, inplace || from == DzFrom::kOutput};
}

/// The arrays from which kernels compute dz and dx.
template <class T>
struct BackwardInputs {
  DzFrom from;
  Activation activation;
  /// dy; x, or in place y; y, or dy if there is no activation: its slope is 1 then, whatever y is.
  const T* arrays[3];
};

/// The number of arrays, of BackwardInputs::arrays, from which kernels compute dx.
template <DzFrom kFrom>
constexpr int kBackwardInputs = kFrom == DzFrom::kOutput ? 3 : 2;

template <auto kValue>
struct Variant {
  static constexpr auto kFrom = kValue;
};

/// Calls visit(Variant<from>()).
template <class Visit>
GLUON_SYNCBN_INLINE void with_y_from(ActType act_type, bool has_shortcut, const Visit& visit) {
  if (has_shortcut) return visit(Variant<YFrom::kActivatedSum>());
  if (act_type != ActType::kNone) return visit(Variant<YFrom::kActivated>());
  visit(Variant<YFrom::kX>());
}
template <class Visit>
GLUON_SYNCBN_INLINE void with_dz_from(DzFrom from, const Visit& visit) {
  if (from == DzFrom::kZ) return visit(Variant<DzFrom::kZ>());
  if (from == DzFrom::kOutput) return visit(Variant<DzFrom::kOutput>());
  if (from == DzFrom::kInPlace) return visit(Variant<DzFrom::kInPlace>());
  visit(Variant<DzFrom::kDy>());
}

}  // namespace gluon_syncbn

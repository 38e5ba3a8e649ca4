#pragma once

#include <cmath>

#include "norm/activation.h"

namespace gluon_syncbn::tests {

inline constexpr Activation kActivations[] = {
    {ActType::kRelu, 0}, {ActType::kLeaky, 0.1}, {ActType::kElu, 1}, {ActType::kElu, 0.4}};

inline constexpr Activation kActivationsAndNone[] = {{},
                                                     {ActType::kRelu, 0},
                                                     {ActType::kLeaky, 0.1},
                                                     {ActType::kElu, 1},
                                                     {ActType::kElu, 0.4},
                                                     {ActType::kLeaky, 3}};

/// Returns act(z), by definition.
inline long double activated(const Activation& activation, long double z) {
  if (z > 0 || activation.type == ActType::kNone) return z;
  const auto slope = static_cast<long double>(activation.slope);
  if (activation.type == ActType::kRelu) return 0;
  return activation.type == ActType::kLeaky ? slope * z : slope * std::expm1(z);
}

/// Returns act'(z). At 0 it is the derivative from below.
inline long double steepness(const Activation& activation, long double z) {
  if (z > 0 || activation.type == ActType::kNone) return 1;
  const auto slope = static_cast<long double>(activation.slope);
  return activation.type == ActType::kElu ? slope * std::exp(z) : slope;
}

/// Returns act'(z), computed from y = act(z).
inline long double steepness_at(const Activation& activation, long double y) {
  if (y > 0 || activation.type != ActType::kElu) return steepness(activation, y);
  return y + static_cast<long double>(activation.slope);
}

/// Returns z, computed from y = act(z).
inline long double inverse(const Activation& activation, long double y) {
  if (y > 0 || activation.type == ActType::kNone) return y;
  const auto slope = static_cast<long double>(activation.slope);
  return activation.type == ActType::kLeaky ? y / slope : std::log1p(y / slope);
}

}  // namespace gluon_syncbn::tests

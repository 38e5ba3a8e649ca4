#include "norm/invertible.h"

#include <algorithm>
#include <sstream>

namespace gluon_syncbn {

bool is_invertible(const Activation& activation) {
  const ActTypeTraits& traits = traits_of(activation.type);
  return traits.is_invertible && (!traits.has_slope || activation.slope > 0);
}

std::string invertible_activations() {
  std::string names;
  for (const ActTypeTraits& each : kActTypes) {
    if (!each.is_invertible || !each.has_slope) continue;
    names += (names.empty() ? "'" : " or '") + std::string(each.name) + "'";
  }
  return "None, or " + names + " with a slope above 0";
}

Invertible Invertible::of(DType dtype, const Activation& activation) {
  // Below 0 the inverse divides by the slope, and so enlarges the error of a small output.
  const bool active = activation.type != ActType::kNone;
  const double least_slope = active ? std::min(activation.slope, 1.0) : 1.0;
  return dispatch(dtype, [least_slope](auto types) -> Invertible {
    using T = typename decltype(types)::Data;
    const double rounding = std::ldexp(1, -kDigits<T>);
    return {rounding, kUnderflow<T> / least_slope, std::sqrt(rounding)};
  });
}

std::string Invertible::error(std::int64_t channel, double gamma, double beta) const {
  std::ostringstream text;
  text << "inplace=True: channel " << channel << " has gamma " << gamma << " and beta " << beta
       << ", so the input is not recoverable from the output: |gamma| should be above "
       << least_gamma(beta) << ". Without inplace=True the layer takes any gamma";
  return text.str();
}

}  // namespace gluon_syncbn

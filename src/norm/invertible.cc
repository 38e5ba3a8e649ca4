#include "norm/invertible.h"

#include <algorithm>
#include <limits>
#include <sstream>

namespace gluon_syncbn {
namespace {

/// Of a dtype: half the distance from 1 to the next number, and a number below which half of the
/// digits may be lost.
struct Precision {
  double rounding;
  double least;
};

Precision precision_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return {std::ldexp(1, -53), std::numeric_limits<double>::min()};
    case DType::kFloat16:
      return {std::ldexp(1, -11), std::ldexp(1, -25)};
    case DType::kFloat32:
      break;
  }
  return {std::ldexp(1, -24), static_cast<double>(std::numeric_limits<float>::min())};
}

}  // namespace

Invertible Invertible::of(DType dtype, const Activation& activation) {
  const auto [rounding, least] = precision_of(dtype);
  // Below 0 an activation makes small numbers of a small slope.
  const bool active = activation.type != ActType::kNone;
  const double flattest = active ? std::min(activation.slope, 1.0) : 1.0;
  return {rounding, least / flattest, std::sqrt(rounding)};
}

std::string Invertible::error(std::int64_t channel, double gamma, double beta) const {
  std::ostringstream text;
  text << "inplace=True: channel " << channel << " has gamma " << gamma << " and beta " << beta
       << ", whose output does not tell the input: |gamma| should be above " << least_gamma(beta)
       << ". Without inplace=True the layer takes any gamma";
  return text.str();
}

}  // namespace gluon_syncbn

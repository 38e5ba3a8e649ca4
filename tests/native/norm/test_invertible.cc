#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "common/dtype.h"
#include "norm/activation.h"
#include "norm/invertible.h"

namespace gluon_syncbn::tests {

TEST_CASE("invertible: half of the digits of an output are those of the input") {
  struct Expected {
    DType dtype;
    double share;  // of beta
    double least;  // with a beta of 0
  };
  for (const Expected& expected :
       {Expected{DType::kFloat32, 0x1p-12, 0x1p-114},
        Expected{DType::kFloat16, std::sqrt(0x1p-11), 0x1p-25 / std::sqrt(0x1p-11)},
        Expected{DType::kFloat64, std::sqrt(0x1p-53), 0x1p-1022 / std::sqrt(0x1p-53)}}) {
    for (const Activation& activation :
         {Activation{}, Activation{ActType::kLeaky, 3}, Activation{ActType::kElu, 1}}) {
      const Invertible invertible = Invertible::of(expected.dtype, activation);
      for (const double sign : {-1.0, 1.0}) {
        CHECK(invertible.holds(sign * 1.001 * expected.least, 0));
        CHECK(!invertible.holds(sign * 0.999 * expected.least, 0));
        CHECK(invertible.holds(1.001 * expected.share * 7, sign * 7));
        CHECK(!invertible.holds(0.999 * expected.share * 7, sign * 7));
        CHECK(!invertible.holds(sign * 0.0, 0));
      }
    }
    // Where the activation is flat, what is small is smaller.
    for (const ActType type : {ActType::kLeaky, ActType::kElu}) {
      const Invertible flat = Invertible::of(expected.dtype, {type, 0.25});
      CHECK(flat.holds(4.001 * expected.least, 0));
      CHECK(!flat.holds(3.999 * expected.least, 0));
    }
  }
}

TEST_CASE("invertible: numbers that are not finite are no error here") {
  const Invertible invertible = Invertible::of(DType::kFloat32, {});
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double odd : {infinity, -infinity, nan}) {
    CHECK(invertible.holds(odd, 0));
    CHECK(invertible.holds(0, odd));
    CHECK(invertible.holds(odd, odd));
  }
}

TEST_CASE("invertible: the error says what gamma should be") {
  CHECK(
      Invertible::of(DType::kFloat32, {}).error(3, 1e-5, -0.5) ==
      "inplace=True: channel 3 has gamma 1e-05 and beta -0.5, so the input is not recoverable from "
      "the output: |gamma| should be above 0.00012207. Without inplace=True the layer takes any "
      "gamma");
}

TEST_CASE("invertible: activations with a slope need one above 0") {
  for (const ActType type : {ActType::kLeaky, ActType::kElu}) {
    CHECK(is_invertible({type, 1e-3}));
    CHECK(!is_invertible({type, 0}));
  }
  CHECK(is_invertible({ActType::kNone, 0}));
  CHECK(!is_invertible({ActType::kRelu, 0}));
  CHECK(invertible_activations() == "None, or 'leaky' or 'elu' with a slope above 0");
}

}  // namespace gluon_syncbn::tests

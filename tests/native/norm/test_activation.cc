#include <doctest/doctest.h>

#include <cmath>

#include "common/half.h"
#include "norm/activation.h"
#include "support/arrays.h"

namespace gluon_syncbn::tests {

TEST_CASE_TEMPLATE("activation: below the saturation expm1(z) rounds to -1, and not above it", T,
                   float, double, Half) {
  const auto rounded = [](double z) { return Type<T>::value(Type<T>::of(std::expm1(z))); };
  CHECK(rounded(kSaturation<T> - 0.01) == -1);
  CHECK(rounded(kSaturation<T> + 0.01) > -1);
}

}  // namespace gluon_syncbn::tests

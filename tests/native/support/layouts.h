#ifndef GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_LAYOUTS_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_LAYOUTS_H_

#include <doctest/doctest.h>

#include <cstdint>

#include "common/layout.h"

namespace gluon_syncbn::tests {

/// Calls try_layout(layout, mean) for runs and columns, some of which vectors do not divide.
template <class Try>
void for_each_layout(const Try& try_layout) {
  const double means[] = {0, 1, -37, 1e3, 1e4};
  int number = 0;
  for (const std::int64_t inner : {1, 3, 15, 16, 17, 49, 2049, 4100}) {
    for (const std::int64_t channels : {1, 3, 65, 257}) {
      for (const std::int64_t outer : {1, 2, 16, 33}) {
        // Large arrays of many long runs try nothing that smaller ones do not.
        if (outer > 1 && outer * channels * inner > 30000) continue;
        const double mean = means[++number % 5];
        CAPTURE(outer);
        CAPTURE(channels);
        CAPTURE(inner);
        CAPTURE(mean);
        try_layout(Layout{outer, channels, inner}, mean);
      }
    }
  }
}

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_LAYOUTS_H_

#ifndef GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_LAYOUTS_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_LAYOUTS_H_

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "common/layout.h"

namespace gluon_syncbn::tests {

/// Runs and columns of few channels and many. Those of several images have `most` elements at most:
/// large arrays of many long runs try nothing that smaller ones do not.
inline std::vector<Layout> layouts_of(const std::vector<std::int64_t>& inners,
                                      const std::vector<std::int64_t>& outers, std::int64_t most) {
  std::vector<Layout> layouts;
  for (const std::int64_t inner : inners) {
    for (const std::int64_t channels : {1, 3, 65, 257}) {
      for (const std::int64_t outer : outers) {
        if (outer == 1 || outer * channels * inner <= most) {
          layouts.push_back({outer, channels, inner});
        }
      }
    }
  }
  return layouts;
}

/// For CPUs: vectors do not divide some of them.
inline std::vector<Layout> cpu_layouts() {
  return layouts_of({1, 3, 15, 16, 17, 49, 2049, 4100}, {1, 2, 16, 33}, 30000);
}

/// Of the data of the layout with this number.
inline double mean_of(std::uint32_t number) {
  const double all[] = {0, 1, -37, 1e3, 1e4};
  return all[number % 5];
}

/// Calls try_layout(layout, number) for all, counted from 1.
template <class Try>
void for_each_layout(const std::vector<Layout>& layouts, const Try& try_layout) {
  std::uint32_t number = 0;
  for (const Layout& layout : layouts) {
    CAPTURE(layout.outer);
    CAPTURE(layout.channels);
    CAPTURE(layout.inner);
    ++number;
    CAPTURE(number);
    try_layout(layout, number);
  }
}

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_LAYOUTS_H_

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/layout.h"

namespace gluon_syncbn::tests {
namespace {

void check(const std::vector<std::int64_t>& shape, std::size_t axis, std::int64_t outer,
           std::int64_t channels, std::int64_t inner) {
  const Layout layout = Layout::of(shape, axis);
  CHECK(layout.outer == outer);
  CHECK(layout.channels == channels);
  CHECK(layout.inner == inner);
  CHECK(layout.count() == outer * inner);
}

}  // namespace

TEST_CASE("layout: dimensions before the axis are outer, those after it inner") {
  check({5}, 0, 1, 5, 1);
  check({2, 3}, 1, 2, 3, 1);
  check({2, 3, 4, 5}, 1, 2, 3, 20);
  check({2, 3, 4, 5}, 3, 24, 5, 1);
  check({2, 3, 4, 5}, 0, 1, 2, 60);
}

TEST_CASE("layout: empty arrays and arrays of more elements than 32 bits count") {
  check({0, 3, 4}, 1, 0, 3, 4);
  check({2, 3, 0}, 1, 2, 3, 0);
  check({2, 0, 4}, 1, 2, 0, 4);
  check({100000, 2, 100000}, 1, 100000, 2, 100000);
}

}  // namespace gluon_syncbn::tests

#pragma once

// The table of cases for the kernels of CPUs and of GPUs.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "common/layout.h"
#include "norm/activation.h"
#include "support/oracle.h"

namespace gluon_syncbn::tests {

/// What is special about the numbers of a case.
enum class Given {
  kUsual,
  kEmpty,              ///< no elements
  kSmall,              ///< with gamma 1e-3 and beta 0, exp(z) - 1 and log(1 + y) would lose digits
  kAtKink,             ///< z is 0, where the derivative is the one from below, and dx is dz
  kNotFinite,          ///< infinities and NaN among inputs
  kNotFiniteRunning,   ///< the same, with running statistics, which dx does not go through
  kDead,               ///< gradients that are not finite, where ReLU is 0
  kFlat,               ///< outputs where ELU is flat, also by rounding
  kSpoiledX,           ///< channels 1 to 3 of x have an element that is not finite
  kSpoiledDy,          ///< the same of dy
  kSpoiledStatistics,  ///< the same of x, and the statistics of such data
};

struct Row {
  Layout layout;
  Activation activation{};
  std::uint32_t number = 1;  ///< seeds the data, and says how arrays lie
  Given given = Given::kUsual;

  std::string text() const {
    std::ostringstream text;
    text << layout.outer << " x " << layout.channels << " x " << layout.inner << ", activation "
         << static_cast<int>(activation.type) << " of slope " << activation.slope << ", number "
         << number << ", given " << static_cast<int>(given);
    return text.str();
  }
  std::int64_t elements() const { return layout.count() * layout.channels; }
};

/// Runs and columns of few channels and of many. Layouts of several images have at most `most`
/// elements, because larger arrays of long runs would test nothing more.
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

/// Layouts of usual numbers have one activation after the other.
inline std::vector<Row> usual_rows(const std::vector<Layout>& layouts) {
  std::vector<Row> rows;
  for (const Layout& layout : layouts) {
    const auto number = static_cast<std::uint32_t>(rows.size() + 1);
    rows.push_back({layout, kActivationsAndNone[number * 5 / 3 % 6], number});
  }
  return rows;
}

/// All other rows. Those of many activations have at most `most` elements.
inline std::vector<Row> special_rows(Given given, std::int64_t most) {
  struct Special {
    Given given;
    std::uint32_t number;
    std::vector<Layout> layouts;
    std::vector<Activation> activations;
  };
  const std::vector<Activation> all(std::begin(kActivationsAndNone), std::end(kActivationsAndNone));
  const std::vector<Layout> short_ones{{1, 1, 64}, {64, 1, 1}};
  const std::vector<Layout> of_six{{5, 6, 1},  {3, 6, 7},    {2, 6, 49},
                                   {40, 6, 1}, {1, 6, 2049}, {3, 6, 2049}};
  const std::vector<Special> table{
      {Given::kEmpty, 1, {{0, 3, 1}, {0, 3, 49}, {2, 3, 0}, {2, 0, 1}, {2, 0, 49}}, {{}}},
      {Given::kSmall, 1, {{2, 6, 49}}, all},
      {Given::kAtKink,
       1,
       {{5, 6, 1}, {2, 6, 49}, {300, 1, 1}, {1, 1, 1}, {33, 5, 17}, {1, 3, 2049}, {700, 9, 5}},
       {all.begin() + 1, all.end()}},
      {Given::kNotFinite, 3, short_ones, all},  // gamma is above 0
      {Given::kNotFiniteRunning, 3, short_ones, all},
      {Given::kDead, 3, short_ones, {{ActType::kRelu, 0}}},
      {Given::kFlat, 1, short_ones, {{ActType::kElu, 0.5}}},
      {Given::kSpoiledX, 5, of_six, {{}}},
      {Given::kSpoiledDy, 5, of_six, {{}}},
      {Given::kSpoiledStatistics, 5, of_six, {{}}},
  };
  std::vector<Row> rows;
  for (const Special& special : table) {
    for (const Layout& layout : special.layouts) {
      for (const Activation& activation : special.activations) {
        const Row row{layout, activation, special.number, special.given};
        const bool is_large = special.activations.size() > 1 && row.elements() > most;
        if (special.given == given && !is_large) rows.push_back(row);
      }
    }
  }
  return rows;
}

}  // namespace gluon_syncbn::tests

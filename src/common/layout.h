#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gluon_syncbn {

inline std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The shape of a dense row-major array as (outer, channels, inner). `outer` and `inner` are the
/// products of the dimensions before and after the channel axis.
struct Layout {
  std::int64_t outer = 0;
  std::int64_t channels = 0;
  std::int64_t inner = 0;

  /// The number of elements per channel.
  std::int64_t count() const { return outer * inner; }

  bool is_empty() const { return count() == 0 || channels == 0; }

  /// Whether the elements of a channel lie in long runs. Otherwise it is faster to compute the
  /// array as a matrix in which each column has its own statistics.
  bool has_runs() const { return inner >= kShortInner; }
  static constexpr std::int64_t kShortInner = 16;

  /// `axis` must lie in [0, shape.size()).
  static Layout of(const std::vector<std::int64_t>& shape, std::size_t axis) {
    Layout layout{1, shape[axis], 1};
    for (std::size_t i = 0; i < axis; ++i) layout.outer *= shape[i];
    for (std::size_t i = axis + 1; i < shape.size(); ++i) layout.inner *= shape[i];
    return layout;
  }
};

}  // namespace gluon_syncbn

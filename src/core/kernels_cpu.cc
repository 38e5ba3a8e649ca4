#include "core/kernels_cpu.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace gluon_syncbn::cpu {
namespace {

// Blocks are small enough that the second pass over one finds it in the first-level cache.
constexpr std::int64_t kBlock = 2048;
constexpr std::int64_t kRows = 16;
constexpr std::int64_t kColumns = 256;
// Below this many contiguous elements per channel, whole rows of channels are faster to walk.
constexpr std::int64_t kShortInner = 16;
constexpr std::int64_t kLanes = 8;

double wide(float value) { return value; }
double wide(double value) { return value; }
double wide(Half value) { return to_float(value); }

/// Single precision arithmetic for float and half data, double for double.
template <class T>
struct Arithmetic {
  using type = float;
};
template <>
struct Arithmetic<double> {
  using type = double;
};
template <class T>
using Real = typename Arithmetic<T>::type;

float real(float value) { return value; }
double real(double value) { return value; }
float real(Half value) { return to_float(value); }

void store(float* to, float value) { *to = value; }
void store(double* to, double value) { *to = value; }
void store(Half* to, float value) { *to = to_half(value); }

/// A mean held in two parts of the working precision, so that x - mean is exact to that precision
/// even where the mean is thousands of standard deviations from zero.
template <class R>
struct SplitMean {
  R high;
  R low;

  explicit SplitMean(double mean)
      : high(static_cast<R>(mean)), low(static_cast<R>(mean - static_cast<double>(high))) {}
  R center(R x) const { return (x - high) - low; }
};

/// Sum of term(i) over [0, n) in eight interleaved partial sums: vectorizable, and closer to the
/// true sum than one running total.
template <class Term>
double lane_sum(std::int64_t n, const Term& term) {
  std::array<double, kLanes> lanes{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[static_cast<std::size_t>(lane)] += term(i + lane);
    }
  }
  double sum = 0;
  for (; i < n; ++i) sum += term(i);
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// Calls visit(begin, n) for the blocks of each contiguous run of one channel.
template <class Visit>
void for_each_block(const Layout& layout, std::int64_t channel, const Visit& visit) {
  for (std::int64_t outer = 0; outer < layout.outer; ++outer) {
    const std::int64_t run = (outer * layout.channels + channel) * layout.inner;
    for (std::int64_t begin = 0; begin < layout.inner; begin += kBlock) {
      visit(run + begin, std::min(kBlock, layout.inner - begin));
    }
  }
}

/// Calls visit(row, rows, column, columns) for the tiles of an (outer, channels * inner) matrix,
/// all tiles of a column from top to bottom.
template <class Visit>
void for_each_tile(const Layout& layout, const Visit& visit) {
  const std::int64_t width = layout.channels * layout.inner;
  for (std::int64_t row = 0; row < layout.outer; row += kRows) {
    const std::int64_t rows = std::min(kRows, layout.outer - row);
    for (std::int64_t column = 0; column < width; column += kColumns) {
      visit(row, rows, column, std::min(kColumns, width - column));
    }
  }
}

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

template <class T>
Moments moments_of_runs(const T* x, const Layout& layout) {
  Moments result{layout.count(), std::vector<double>(index(layout.channels)),
                 std::vector<double>(index(layout.channels))};
  for (std::int64_t channel = 0; channel < layout.channels; ++channel) {
    std::int64_t count = 0;
    double mean = 0;
    double m2 = 0;
    for_each_block(layout, channel, [&](std::int64_t begin, std::int64_t n) {
      const T* block = x + begin;
      const double block_mean =
          lane_sum(n, [&](std::int64_t i) { return wide(block[i]); }) / static_cast<double>(n);
      const double block_m2 = lane_sum(n, [&](std::int64_t i) {
        const double deviation = wide(block[i]) - block_mean;
        return deviation * deviation;
      });
      merge_channel(count, &mean, &m2, n, block_mean, block_m2);
      count += n;
    });
    result.mean[index(channel)] = mean;
    result.m2[index(channel)] = m2;
  }
  return result;
}

template <class T>
Moments moments_of_rows(const T* x, const Layout& layout) {
  const std::int64_t width = layout.channels * layout.inner;
  std::vector<double> mean(index(width));
  std::vector<double> m2(index(width));
  for_each_tile(
      layout, [&](std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
        std::array<double, kColumns> tile_mean{};
        std::array<double, kColumns> tile_m2{};
        for (std::int64_t r = row; r < row + rows; ++r) {
          const T* line = x + r * width + column;
          for (std::int64_t i = 0; i < columns; ++i) tile_mean[index(i)] += wide(line[i]);
        }
        for (std::int64_t i = 0; i < columns; ++i) tile_mean[index(i)] /= static_cast<double>(rows);
        for (std::int64_t r = row; r < row + rows; ++r) {
          const T* line = x + r * width + column;
          for (std::int64_t i = 0; i < columns; ++i) {
            const double deviation = wide(line[i]) - tile_mean[index(i)];
            tile_m2[index(i)] += deviation * deviation;
          }
        }
        for (std::int64_t i = 0; i < columns; ++i) {
          merge_channel(row, &mean[index(column + i)], &m2[index(column + i)], rows,
                        tile_mean[index(i)], tile_m2[index(i)]);
        }
      });

  Moments result{layout.count(), std::vector<double>(index(layout.channels)),
                 std::vector<double>(index(layout.channels))};
  if (result.count == 0) return result;
  for (std::int64_t column = 0; column < width; ++column) {
    const std::int64_t channel = column / layout.inner;
    const std::int64_t columns_before = column % layout.inner;
    merge_channel(columns_before * layout.outer, &result.mean[index(channel)],
                  &result.m2[index(channel)], layout.outer, mean[index(column)], m2[index(column)]);
  }
  return result;
}

/// Calls apply(i, channel) for every element i, in memory order within a run.
template <class Apply>
void for_each_element(const Layout& layout, const Apply& apply) {
  if (layout.inner == 1) {
    for (std::int64_t outer = 0; outer < layout.outer; ++outer) {
      const std::int64_t line = outer * layout.channels;
      for (std::int64_t c = 0; c < layout.channels; ++c) apply(line + c, c);
    }
    return;
  }
  for (std::int64_t outer = 0; outer < layout.outer; ++outer) {
    for (std::int64_t channel = 0; channel < layout.channels; ++channel) {
      const std::int64_t run = (outer * layout.channels + channel) * layout.inner;
      for (std::int64_t i = run; i < run + layout.inner; ++i) apply(i, channel);
    }
  }
}

template <class R>
std::vector<SplitMean<R>> split(const std::vector<double>& means) {
  return std::vector<SplitMean<R>>(means.begin(), means.end());
}

template <class R>
std::vector<R> narrow(const std::vector<double>& values) {
  std::vector<R> narrowed;
  narrowed.reserve(values.size());
  for (const double value : values) narrowed.push_back(static_cast<R>(value));
  return narrowed;
}

/// Writes value(i, channel) to every element of `out`, or adds it.
template <class T, class Value>
void write_elements(const Layout& layout, Write write, T* out, const Value& value) {
  if (write == Write::kAdd) {
    for_each_element(layout, [&](std::int64_t i, std::int64_t channel) {
      store(out + i, real(out[i]) + value(i, index(channel)));
    });
  } else {
    for_each_element(layout, [&](std::int64_t i, std::int64_t channel) {
      store(out + i, value(i, index(channel)));
    });
  }
}

}  // namespace

template <class T>
Moments moments(const T* x, const Layout& layout) {
  return layout.inner < kShortInner ? moments_of_rows(x, layout) : moments_of_runs(x, layout);
}

template <class T>
void normalize(const T* x, const Layout& layout, const Normalization& normalization, Write write,
               T* y) {
  using R = Real<T>;
  const auto mean = split<R>(normalization.mean);
  const auto scale = narrow<R>(normalization.scale);
  const auto shift = narrow<R>(normalization.shift);
  write_elements(layout, write, y, [&](std::int64_t i, std::size_t c) {
    return mean[c].center(real(x[i])) * scale[c] + shift[c];
  });
}

template <class T>
GradientSums gradient_sums(const T* dy, const T* x, const Layout& layout,
                           const std::vector<double>& mean) {
  const std::size_t channels = index(layout.channels);
  GradientSums sums{std::vector<double>(channels), std::vector<double>(channels)};
  if (layout.inner < kShortInner) {
    for_each_element(layout, [&](std::int64_t i, std::int64_t channel) {
      const std::size_t c = index(channel);
      sums.dy[c] += wide(dy[i]);
      sums.dy_centered[c] += wide(dy[i]) * (wide(x[i]) - mean[c]);
    });
    return sums;
  }
  for (std::size_t c = 0; c < channels; ++c) {
    for_each_block(layout, static_cast<std::int64_t>(c), [&](std::int64_t begin, std::int64_t n) {
      const T* dy_block = dy + begin;
      const T* x_block = x + begin;
      sums.dy[c] += lane_sum(n, [&](std::int64_t i) { return wide(dy_block[i]); });
      sums.dy_centered[c] += lane_sum(
          n, [&](std::int64_t i) { return wide(dy_block[i]) * (wide(x_block[i]) - mean[c]); });
    });
  }
  return sums;
}

template <class T>
void input_gradient(const T* dy, const T* x, const Layout& layout, const InputGradient& gradient,
                    Write write, T* dx) {
  using R = Real<T>;
  const auto mean = split<R>(gradient.mean);
  const auto dy_factor = narrow<R>(gradient.dy_factor);
  const auto x_factor = narrow<R>(gradient.x_factor);
  const auto constant = narrow<R>(gradient.constant);
  write_elements(layout, write, dx, [&](std::int64_t i, std::size_t c) {
    return dy_factor[c] * real(dy[i]) + x_factor[c] * mean[c].center(real(x[i])) + constant[c];
  });
}

#define GLUON_SYNCBN_INSTANTIATE(T)                                                               \
  template Moments moments<T>(const T*, const Layout&);                                           \
  template void normalize<T>(const T*, const Layout&, const Normalization&, Write, T*);           \
  template GradientSums gradient_sums<T>(const T*, const T*, const Layout&,                       \
                                         const std::vector<double>&);                             \
  template void input_gradient<T>(const T*, const T*, const Layout&, const InputGradient&, Write, \
                                  T*);
GLUON_SYNCBN_INSTANTIATE(float)
GLUON_SYNCBN_INSTANTIATE(double)
GLUON_SYNCBN_INSTANTIATE(Half)
#undef GLUON_SYNCBN_INSTANTIATE

}  // namespace gluon_syncbn::cpu

// Loops over matrices in which each column has its own statistics.

#pragma once

#include <cstdint>

#include "cpu/simd/activations.h"
#include "cpu/simd/elementwise.h"
#include "cpu/simd/isa.h"
#include "cpu/simd/statistics.h"
#include "cpu/simd/vectors.h"
#include "cpu/tuning.h"
#include "norm/activation.h"
#include "norm/merge_weight.h"

namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA {
namespace {

/// Rows of a tile. Its sums are complete before they are merged into the statistics of the columns.
constexpr std::int64_t kBlockRows = kAddsPerLane;

/// The last tile of a row may be wider by less than a vector, so that no tile is narrower than one.
constexpr std::int64_t kMostColumns = kTile + kDoubles;

GLUON_SYNCBN_INLINE std::int64_t columns_of_tile(std::int64_t rest) {
  return rest < kMostColumns ? rest : kTile;
}

/// Two sums over the rows of a tile for each of its columns.
struct TileSums {
  double first[kMostColumns];
  double second[kMostColumns];
};

/// Calls visit(i) for the first columns i of vectors that cover all columns. The last two vectors
/// may overlap.
template <class Visit>
GLUON_SYNCBN_INLINE void for_each_vector(std::int64_t columns, const Visit& visit) {
  for (std::int64_t i = 0; i < columns; i += kDoubles) visit(smaller(i, columns - kDoubles));
}

/// Sums terms(row, column) over the rows, for all columns of a tile of T.
///
/// Reads kRowGroup rows at a time, so that the sums are seldom loaded and stored. The processor
/// does not predict this order. So this calls fetch(row, column) for each cache line of later rows.
template <class T, class EachTerms, class Fetch>
GLUON_SYNCBN_INLINE void sum_rows(std::int64_t rows, std::int64_t columns, TileSums* sums,
                                  const EachTerms& terms, const Fetch& fetch) {
  constexpr std::int64_t kLine = kLineBytes / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < columns; ++i) sums->first[i] = sums->second[i] = 0;
  const auto add = [&](std::int64_t row, std::int64_t i, Terms* sum) GLUON_SYNCBN_INLINED {
    const Terms more = terms(row, i);
    sum->first += more.first;
    sum->second += more.second;
  };
  std::int64_t row = 0;
  for (; row + kRowGroup <= rows; row += kRowGroup) {
    std::int64_t row_ahead = row + kRowsAhead;
    std::int64_t column_ahead = 0;
    for (std::int64_t i = 0; i + kDoubles <= columns; i += kDoubles) {
      for (std::int64_t fetched = 0; fetched < kRowGroup * kDoubles; fetched += kLine) {
        fetch(row_ahead, column_ahead);
        column_ahead += kLine;
        if (column_ahead >= columns) {
          column_ahead = 0;
          ++row_ahead;
        }
      }
      Terms sum{load(sums->first + i), load(sums->second + i)};
      for (std::int64_t r = row; r < row + kRowGroup; ++r) add(r, i, &sum);
      store(sums->first + i, sum.first);
      store(sums->second + i, sum.second);
    }
  }
  // The remaining rows. The last vector may overlap the one before it: only its last lanes count,
  // over all rows.
  for (std::int64_t i = 0; i < columns; i += kDoubles) {
    const std::int64_t at = smaller(i, columns - kDoubles);
    Terms sum{};
    for (std::int64_t r = at == i ? row : 0; r < rows; ++r) add(r, at, &sum);
    const std::int64_t counted = smaller(columns - i, kDoubles);
    store(sums->first + at, load(sums->first + at) + last_lanes(sum.first, counted));
    store(sums->second + at, load(sums->second + at) + last_lanes(sum.second, counted));
  }
}

/// Writes the pivots of a tile: the means so far or, for the `first` tile of the columns, the means
/// of its first few rows. If these rows are equal, the pivots are exact.
template <class T>
GLUON_SYNCBN_INLINE void choose_pivots(const T* x, std::int64_t width, std::int64_t rows,
                                       const double* mean, bool first, std::int64_t columns,
                                       double* pivots) {
  const std::int64_t top = rows < kRowGroup ? 1 : kRowGroup;
  for_each_vector(columns, [&](std::int64_t i) {
    Doubles pivot = first ? load_wide(x + i) : load(mean + i);
    if (first && top > 1) {
      for (std::int64_t row = 1; row < top; ++row) pivot += load_wide(x + row * width + i);
      pivot /= static_cast<double>(kRowGroup);
    }
    store(pivots + i, pivot);
  });
}

template <class R>
struct PaddedNormalization {
  Padded<R> center, scale, shift;

  PaddedNormalization(const NormalizationArrays<R>& p, std::int64_t number)
      : center(p.center, number), scale(p.scale, number), shift(p.shift, number) {}

  NormalizationArrays<R> arrays() const { return {center, scale, shift}; }
};

/// Merges a tile into the moments of its columns, which have `rows_before` rows so far.
template <class T>
void merge_tile(const T* x, std::int64_t width, std::int64_t rows, std::int64_t columns,
                std::int64_t rows_before, double* mean, double* m2) {
  TileSums sums;
  double pivots[kMostColumns];
  const double share = 1 / static_cast<double>(rows);
  const auto look = [&] {
    sum_rows<T>(
        rows, columns, &sums,
        [&](std::int64_t row, std::int64_t i) GLUON_SYNCBN_INLINED {
          const Doubles d = load_wide(x + row * width + i) - load(pivots + i);
          return Terms{d, d * d};
        },
        [&](std::int64_t row, std::int64_t i) GLUON_SYNCBN_INLINED { fetch(x + row * width + i); });
  };
  const auto seen = [&](std::int64_t i) {
    return PivotSums<Doubles>{load(pivots + i), load(sums.first + i), load(sums.second + i)};
  };
  choose_pivots(x, width, rows, mean, rows_before == 0, columns, pivots);
  look();
  bool far = false;
  for_each_vector(columns, [&](std::int64_t i) { far = far || is_far(seen(i), share); });
  if (far) {
    double better[kMostColumns];
    for_each_vector(columns, [&](std::int64_t i) { store(better + i, seen(i).mean(share)); });
    __builtin_memcpy(pivots, better, sizeof(pivots));
    look();
  }
  const MergeWeight weight = MergeWeight::of(rows_before, rows);
  for (std::int64_t i = 0; i < columns; ++i) {
    const PivotSums<double> d{pivots[i], sums.first[i], sums.second[i]};
    weight.merge(d.mean(share), d.m2(share), mean + i, m2 + i);
  }
}

template <class T>
void column_moments(const T* x, Extent extent, double* mean, double* m2) {
  if (const std::int64_t n = extent.columns; n < kDoubles) {
    double means[kDoubles], m2s[kDoubles];
    column_moments<T>(Padded<T>(x, n), {1, kDoubles}, means, m2s);
    return copy(means, n, mean), copy(m2s, n, m2);
  }
  for (std::int64_t i = 0; i < extent.columns; ++i) mean[i] = m2[i] = 0;
  for (std::int64_t row = 0; row < extent.rows; row += kBlockRows) {
    const std::int64_t rows = smaller(kBlockRows, extent.rows - row);
    for (std::int64_t i = 0; i < extent.columns;) {
      const std::int64_t columns = columns_of_tile(extent.columns - i);
      merge_tile(x + row * extent.columns + i, extent.columns, rows, columns, row, mean + i,
                 m2 + i);
      i += columns;
    }
  }
}

template <class T>
void column_gradient_sums(const T* dy, const T* x, const T* y, Extent extent,
                          const NormalizationArrays<double>& p, const Activation& activation,
                          double* sum_dz, double* sum_dz_centered) {
  if (const std::int64_t n = extent.columns; n < kDoubles) {
    const PaddedNormalization<double> padded(p, n);
    double sums[kDoubles], centered[kDoubles];
    column_gradient_sums<T>(Padded<T>(dy, n), Padded<T>(x, n), Padded<T>(y, n), {1, kDoubles},
                            padded.arrays(), activation, sums, centered);
    return copy(sums, n, sum_dz), copy(centered, n, sum_dz_centered);
  }
  const std::int64_t width = extent.columns;
  for (std::int64_t i = 0; i < width; ++i) sum_dz[i] = sum_dz_centered[i] = 0;
  TileSums sums;
  with_gates(activation, x, y, p, [&](auto gates) GLUON_SYNCBN_INLINED {
    const auto inputs = inputs_of<decltype(gates)>(dy, x, y);
    for (std::int64_t row = 0; row < extent.rows; row += kBlockRows) {
      const std::int64_t rows = smaller(kBlockRows, extent.rows - row);
      for (std::int64_t tile = 0; tile < width;) {
        const std::int64_t columns = columns_of_tile(width - tile);
        const auto of_tile = inputs + (row * width + tile);
        sum_rows<T>(
            rows, columns, &sums,
            [&](std::int64_t r, std::int64_t i) GLUON_SYNCBN_INLINED {
              const auto of_columns = [&](const double* array)
                                          GLUON_SYNCBN_INLINED { return load(array + tile + i); };
              const GradientTerms<decltype(gates.at(of_columns))> terms{of_columns(p.center),
                                                                        gates.at(of_columns)};
              const Terms t =
                  (of_tile + (r * width + i)).apply(terms, [](const T* from) GLUON_SYNCBN_INLINED {
                    return load_wide(from);
                  });
              return Terms{t.first, t.first * t.second};
            },
            [&](std::int64_t r, std::int64_t i) GLUON_SYNCBN_INLINED {
              for (const T* array : of_tile.arrays) fetch(array + r * width + i);
            });
        for (std::int64_t i = 0; i < columns; ++i) {
          sum_dz[tile + i] += sums.first[i];
          sum_dz_centered[tile + i] += sums.second[i];
        }
        tile += columns;
      }
    }
  });
}

/// Like Computed, with other numbers for each column.
template <class T, int kInputs, class By>
struct ComputedColumns {
  const Inputs<T, kInputs>& inputs;
  const By& by;

  GLUON_SYNCBN_INLINE Reals<T> operator()(std::int64_t i) const {
    const auto f =
        by.at([i](const Real<T>* array) GLUON_SYNCBN_INLINED { return load(array + i); });
    return Computed<T, kInputs, decltype(f)>{inputs, f}(i);
  }
};

template <class T, int kInputs, class By>
GLUON_SYNCBN_INLINE void write_rows(const Inputs<T, kInputs>& inputs, Extent extent, const By& by,
                                    StoreMode how, T* out) {
  for (std::int64_t row = 0; row < extent.rows; ++row) {
    const std::int64_t begin = row * extent.columns;
    const Inputs<T, kInputs> of_row = inputs + begin;
    write(out + begin, extent.columns, how, ComputedColumns<T, kInputs, By>{of_row, by});
  }
  end_of_stream(how);
}

template <class T>
void column_normalize(const T* x, const T* shortcut, Extent extent,
                      const NormalizationArrays<Real<T>>& p, const Activation& activation,
                      StoreMode how, T* y) {
  if (const std::int64_t n = extent.columns; n < kReals<T>) {
    const PaddedNormalization<Real<T>> padded(p, n);
    Padded<T> out(y, n);
    column_normalize<T>(Padded<T>(x, n), Padded<T>(shortcut, n), {1, kReals<T>}, padded.arrays(),
                        activation, how, out.elements);
    return copy(out.elements, n, y);
  }
  with_normalization(x, shortcut, p, activation,
                     [&](const auto& inputs, const auto& by)
                         GLUON_SYNCBN_INLINED { write_rows(inputs, extent, by, how, y); });
}

template <class T>
void column_input_gradient(const T* dy, const T* x, const T* y, Extent extent,
                           const NormalizationArrays<Real<T>>& n,
                           const InputGradientArrays<Real<T>>& p, const Activation& activation,
                           StoreMode how, T* dx) {
  using R = Real<T>;
  if (const std::int64_t k = extent.columns; k < kReals<T>) {
    const PaddedNormalization<R> padded(n, k);
    const Padded<R> dy_factor(p.dy_factor, k), x_factor(p.x_factor, k), constant(p.constant, k);
    Padded<T> out(dx, k);
    column_input_gradient<T>(Padded<T>(dy, k), Padded<T>(x, k), Padded<T>(y, k), {1, kReals<T>},
                             padded.arrays(), {dy_factor, x_factor, constant}, activation, how,
                             out.elements);
    return copy(out.elements, k, dx);
  }
  with_gates(activation, x, y, n, [&](auto gates) GLUON_SYNCBN_INLINED {
    using Gates = decltype(gates);
    write_rows(inputs_of<Gates>(dy, x, y), extent, DifferentiateBy<R, Gates>{n.center, p, gates},
               how, dx);
  });
}

}  // namespace
}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA

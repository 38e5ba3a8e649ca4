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

namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA {
namespace {

/// Calls visit(like, i) for the first elements i of whole vectors, and then for each element after
/// them, that cover `number` elements.
template <class Visit>
GLUON_SYNCBN_INLINE void for_each_vector(std::int64_t number, const Visit& visit) {
  std::int64_t i = 0;
  for (; i + kDoubles <= number; i += kDoubles) visit(Doubles{}, i);
  for (; i < number; ++i) visit(OneDouble{}, i);
}

/// Writes the two sums of terms(like, row, column) over the rows, for all columns of a tile of T.
///
/// Reads kRowGroup rows at a time, so that the sums are seldom loaded and stored. The processor
/// does not predict this order. So this calls fetch(row, column) for each cache line of later rows.
template <class T, class EachTerms, class Fetch>
GLUON_SYNCBN_INLINE void sum_rows(std::int64_t rows, std::int64_t columns, double* first,
                                  double* second, const EachTerms& terms, const Fetch& fetch) {
  constexpr std::int64_t kLine = kLineBytes / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < columns; ++i) first[i] = second[i] = 0;
  for (std::int64_t row = 0; row < rows; row += kRowGroup) {
    const std::int64_t end = smaller(row + kRowGroup, rows);
    std::int64_t row_ahead = row + kRowsAhead;
    std::int64_t column_ahead = 0;
    for_each_vector(columns, [&](auto like, std::int64_t i) GLUON_SYNCBN_INLINED {
      for (std::int64_t fetched = 0; fetched < kRowGroup * lanes_of<decltype(like)>();
           fetched += kLine) {
        fetch(row_ahead, column_ahead);
        column_ahead += kLine;
        if (column_ahead >= columns) {
          column_ahead = 0;
          ++row_ahead;
        }
      }
      Terms<decltype(like)> sum{load(like, first + i), load(like, second + i)};
      for (std::int64_t r = row; r < end; ++r) sum += terms(like, r, i);
      store(first + i, sum.first);
      store(second + i, sum.second);
    });
  }
}

/// Writes the moments of a tile.
template <class T>
void tile_moments(const T* x, std::int64_t width, std::int64_t rows, std::int64_t columns,
                  double* mean, double* m2) {
  double sums[kTile];
  double squares[kTile];
  const double share = 1 / static_cast<double>(rows);
  double* const pivots = mean;
  const auto look = [&] {
    sum_rows<T>(
        rows, columns, sums, squares,
        [&](auto like, std::int64_t row, std::int64_t i) GLUON_SYNCBN_INLINED {
          const auto d = load(like, x + row * width + i) - load(like, pivots + i);
          return Terms<decltype(like)>{d, d * d};
        },
        [&](std::int64_t row, std::int64_t i) GLUON_SYNCBN_INLINED { fetch(x + row * width + i); });
  };
  const auto seen = [&](std::int64_t i) { return PivotSums{pivots[i], sums[i], squares[i]}; };
  // The means of the first few rows. If these rows are equal, the pivots are exact.
  const std::int64_t top = rows < kRowGroup ? 1 : kRowGroup;
  for_each_vector(columns, [&](auto like, std::int64_t i) {
    auto sum = load(like, x + i);
    for (std::int64_t row = 1; row < top; ++row) sum += load(like, x + row * width + i);
    store(pivots + i, sum / static_cast<double>(top));
  });
  look();
  bool far = false;
  for (std::int64_t i = 0; i < columns; ++i) far = far || seen(i).is_far(share);
  if (far) {
    for (std::int64_t i = 0; i < columns; ++i) pivots[i] = seen(i).mean(share);
    look();
  }
  for (std::int64_t i = 0; i < columns; ++i) {
    m2[i] = seen(i).m2(share);
    mean[i] = seen(i).mean(share);
  }
}

template <class T>
void column_moments(const T* x, Extent extent, double* mean, double* m2) {
  for (std::int64_t i = 0; i < extent.columns; i += kTile) {
    tile_moments(x + i, extent.columns, extent.rows, smaller(kTile, extent.columns - i), mean + i,
                 m2 + i);
  }
}

template <class T>
void column_gradient_sums(const T* dy, const T* x, const T* y, Extent extent,
                          const NormalizationArrays<double>& p, const Activation& activation,
                          double* sum_dz, double* sum_dz_centered) {
  const std::int64_t width = extent.columns;
  with_gates(activation, x, y, p, [&](auto gates) GLUON_SYNCBN_INLINED {
    for (std::int64_t tile = 0; tile < width; tile += kTile) {
      const auto of_tile = inputs_of<decltype(gates)>(dy, x, y) + tile;
      sum_rows<T>(
          extent.rows, smaller(kTile, width - tile), sum_dz + tile, sum_dz_centered + tile,
          [&](auto like, std::int64_t row, std::int64_t i) GLUON_SYNCBN_INLINED {
            const auto of_columns = [&](const double* array) GLUON_SYNCBN_INLINED {
              return load(like, array + tile + i);
            };
            return (of_tile + (row * width + i))
                .apply(like, gradient_terms(p.center, gates, of_columns));
          },
          [&](std::int64_t row, std::int64_t i) GLUON_SYNCBN_INLINED {
            for (const T* array : of_tile.arrays) fetch(array + row * width + i);
          });
    }
  });
}

template <class T, int kInputs, class By>
GLUON_SYNCBN_INLINE void write_rows(const Inputs<T, kInputs>& inputs, Extent extent, const By& by,
                                    StoreMode how, T* out) {
  for (std::int64_t row = 0; row < extent.rows; ++row) {
    const std::int64_t begin = row * extent.columns;
    write(out + begin, extent.columns, how, [&](auto like) GLUON_SYNCBN_INLINED {
      return [&, like](std::int64_t i) GLUON_SYNCBN_INLINED {
        const auto f =
            by.at([&](const Real<T>* array) GLUON_SYNCBN_INLINED { return load(like, array + i); });
        return (inputs + (begin + i)).apply(like, f);
      };
    });
  }
  end_of_stream(how);
}

template <class T>
void column_normalize(const T* x, const T* shortcut, Extent extent,
                      const NormalizationArrays<Real<T>>& p, const Activation& activation,
                      StoreMode how, T* y) {
  with_normalization(x, shortcut, p, activation,
                     [&](const auto& inputs, const auto& by)
                         GLUON_SYNCBN_INLINED { write_rows(inputs, extent, by, how, y); });
}

template <class T>
void column_input_gradient(const T* dy, const T* x, const T* y, Extent extent,
                           const NormalizationArrays<Real<T>>& n,
                           const InputGradientArrays<Real<T>>& p, const Activation& activation,
                           StoreMode how, T* dx) {
  with_gates(activation, x, y, n, [&](auto gates) GLUON_SYNCBN_INLINED {
    using Gates = decltype(gates);
    write_rows(inputs_of<Gates>(dy, x, y), extent,
               DifferentiateBy<Real<T>, Gates>{n.center, p, gates}, how, dx);
  });
}

}  // namespace
}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA

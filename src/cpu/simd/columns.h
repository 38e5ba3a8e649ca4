// Loops over matrices in which each column has its own statistics.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "cpu/simd/activations.h"
#include "cpu/simd/elementwise.h"
#include "cpu/simd/isa.h"
#include "cpu/simd/statistics.h"
#include "cpu/simd/vectors.h"
#include "cpu/tuning.h"
#include "norm/activation.h"
#include "norm/coefficients.h"
#include "norm/variants.h"

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

/// Adds the terms of the rows [row, end) to the sums of neighbouring vectors of columns, the first
/// of which begins with column i.
template <std::size_t... kVectors, class V, class EachTerms, class Fetch>
GLUON_SYNCBN_INLINE void sum_vectors(std::index_sequence<kVectors...>, V like, std::int64_t i,
                                     std::int64_t row, std::int64_t end, double* first,
                                     double* second, const EachTerms& terms, const Fetch& fetch) {
  const std::int64_t columns[] = {i + std::int64_t{kVectors} * lanes_of<V>()...};
  Terms<V> sums[] = {
      {load(like, first + columns[kVectors]), load(like, second + columns[kVectors])}...};
  const decltype(terms(like, i)) of_columns[] = {terms(like, columns[kVectors])...};
  for (; row < end; ++row) {
    fetch(row + kRowsAhead, i);
    ((sums[kVectors] += of_columns[kVectors](row)), ...);
  }
  (store(first + columns[kVectors], sums[kVectors].first), ...);
  (store(second + columns[kVectors], sums[kVectors].second), ...);
}

/// Writes the two sums of terms(like, column)(row) over the rows, for all columns of a tile.
///
/// Reads kRowGroup rows of kColumnsTogether columns at a time, so that the sums are seldom loaded
/// and stored. The processor does not predict this order. So this calls fetch(row, column) for
/// later rows. To fetch many lines of one row at a time took up to 1.7 times as long.
template <class EachTerms, class Fetch>
GLUON_SYNCBN_INLINE void sum_rows(std::int64_t rows, std::int64_t columns, double* first,
                                  double* second, const EachTerms& terms, const Fetch& fetch) {
  for (std::int64_t i = 0; i < columns; ++i) first[i] = second[i] = 0;
  for (std::int64_t row = 0; row < rows; row += kRowGroup) {
    const auto sum = [&](auto vectors, auto like, std::int64_t i) GLUON_SYNCBN_INLINED {
      sum_vectors(vectors, like, i, row, smaller(row + kRowGroup, rows), first, second, terms,
                  fetch);
    };
    std::int64_t i = 0;
    constexpr std::make_index_sequence<kColumnsTogether / kDoubles> kTogether;
    constexpr std::index_sequence<0> kAlone;
    for (; i + kColumnsTogether <= columns; i += kColumnsTogether) sum(kTogether, Doubles{}, i);
    for (; i + kDoubles <= columns; i += kDoubles) sum(kAlone, Doubles{}, i);
    for (; i < columns; ++i) sum(kAlone, OneDouble{}, i);
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
    sum_rows(
        rows, columns, sums, squares,
        [&](auto like, std::int64_t i) GLUON_SYNCBN_INLINED {
          const auto pivot = load(like, pivots + i);
          return [=](std::int64_t row) GLUON_SYNCBN_INLINED {
            const auto d = load(like, x + row * width + i) - pivot;
            return Terms<decltype(like)>{d, d * d};
          };
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
void column_gradient_sums(const BackwardInputs<T>& inputs, Extent extent,
                          const Affine<const double*>& n, double* first, double* second) {
  const std::int64_t width = extent.columns;
  with_terms(inputs, [&](const auto& arrays, const auto& terms) GLUON_SYNCBN_INLINED {
    for (std::int64_t tile = 0; tile < width; tile += kTile) {
      const auto of_tile = arrays + tile;
      sum_rows(
          extent.rows, smaller(kTile, width - tile), first + tile, second + tile,
          [&](auto like, std::int64_t i) GLUON_SYNCBN_INLINED {
            const auto of_columns = [&](const double* array) GLUON_SYNCBN_INLINED {
              return load(like, array + tile + i);
            };
            return [&of_tile, &terms, width, like, i, of_c = n.map(of_columns)](std::int64_t row)
                       GLUON_SYNCBN_INLINED {
                         return (of_tile + (row * width + i)).apply(like, terms, of_c);
                       };
          },
          [&](std::int64_t row, std::int64_t i) GLUON_SYNCBN_INLINED {
            for (const T* array : of_tile.arrays) fetch(array + row * width + i);
          });
    }
  });
}

template <class T, int kInputs, class F, class Coefficients>
GLUON_SYNCBN_INLINE void write_rows(const Inputs<T, kInputs>& inputs, Extent extent, const F& f,
                                    const Coefficients& n, StoreMode how, T* out) {
  for (std::int64_t row = 0; row < extent.rows; ++row) {
    const std::int64_t begin = row * extent.columns;
    write(out + begin, extent.columns, how, [&](auto like) GLUON_SYNCBN_INLINED {
      return [&, like](std::int64_t i) GLUON_SYNCBN_INLINED {
        const auto of_columns = [&](const Real<T>* array)
                                    GLUON_SYNCBN_INLINED { return load(like, array + i); };
        return (inputs + (begin + i)).apply(like, f, n.map(of_columns));
      };
    });
  }
  end_of_stream(how);
}

template <class T>
void column_normalize(const T* x, const T* shortcut, Extent extent, const Affine<const Real<T>*>& n,
                      const Activation& activation, StoreMode how, T* y) {
  with_normalization(x, shortcut, activation,
                     [&](const auto& inputs, const auto& f)
                         GLUON_SYNCBN_INLINED { write_rows(inputs, extent, f, n, how, y); });
}

template <class T>
void column_input_gradient(const BackwardInputs<T>& inputs, Extent extent,
                           const GradientAndShift<const Real<T>*>& n, StoreMode how, T* dx) {
  with_input_gradient(inputs, [&](const auto& arrays, const auto& f) GLUON_SYNCBN_INLINED {
    write_rows(arrays, extent, f, n, how, dx);
  });
}

}  // namespace
}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA

#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/activations.h"
#include "cuda/kernels/body.h"
#include "cuda/kernels/messages.h"
#include "cuda/kernels/pack.h"
#include "cuda/kernels/visit.h"
#include "norm/coefficients.h"
#include "norm/variants.h"

// An accumulator defines the sums of a kernel. It has
//
//   kName, kInputs             for messages; the number of input arrays
//   Gate                       replaces dy by dz before the sums (activations.h)
//   kHasCenters                whether the gate has the centers; otherwise set_pivots() sets them
//   OfResults                  an accumulator with the same results, for MergeBlocks
//   Result                     a partial result
//   add(elements, n, first, second)
//                              adds the two terms of an element to two sums; `n` are the
//                              coefficients of its channel
//   result(count, center, first, second)
//                              the partial result from two sums around a center
//   Result::merged<kNumber>(results)
//                              merges several partial results in R
//   InDouble::add(result)      merges a partial result into an InDouble, which begins as {}
//   finish(result, parameters, c)
//                              the two numbers of a message

namespace gluon_syncbn::cuda {

/// The sum of the deviations of `count` elements from a pivot, and the sum of the squared
/// deviations. The pivot is near the mean of these elements, so little cancels.
template <class R>
struct alignas(16) ShiftedSums {
  R pivot;
  R first;
  R second;
  R count;

  /// Merges by the formulae of Chan, Golub and LeVeque (norm/merge_weight.h), but with one division
  /// for all. Results without elements may have any pivot.
  template <int kNumber>
  static ShiftedSums merged(const ShiftedSums* results) {
    ShiftedSums all{results[kNumber - 1].pivot, R(0), R(0), R(0)};
    GLUON_SYNCBN_UNROLL
    for (int i = kNumber - 2; i >= 0; --i) {
      if (results[i].count > R(0)) all.pivot = results[i].pivot;
    }
    R shift = results[0].first + results[0].count * (results[0].pivot - all.pivot);
    all.count = results[0].count;
    GLUON_SYNCBN_UNROLL
    for (int i = 1; i < kNumber; ++i) {
      all.count += results[i].count;
      shift += results[i].first + results[i].count * (results[i].pivot - all.pivot);
    }
    // The mean is exact if all elements are equal.
    if (all.count > R(0)) all.pivot += shift / all.count;
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kNumber; ++i) all.move_in(results[i]);
    return all;
  }

  /// Keeps the pivot of the first result: the mean of many elements is near enough in double.
  template <class From>
  void add(const ShiftedSums<From>& result) {
    static_assert(std::is_same_v<R, double>);
    const ShiftedSums in_double{result.pivot, result.first, result.second, result.count};
    if (count == 0) pivot = in_double.pivot;
    move_in(in_double);
    count += in_double.count;
  }

 private:
  /// Adds the sums of `other`, as deviations from this pivot. Does not add the count.
  void move_in(const ShiftedSums& other) {
    const R apart = other.pivot - pivot;
    const R moved = other.first + other.count * apart;
    first += moved;
    second += other.second + apart * (other.first + moved);
  }
};

template <class R>
struct alignas(2 * sizeof(R)) Sums {
  R first;
  R second;

  template <int kNumber>
  static Sums merged(const Sums* results) {
    Sums all = results[0];
    GLUON_SYNCBN_UNROLL
    for (int i = 1; i < kNumber; ++i) all.add(results[i]);
    return all;
  }
  template <class From>
  void add(const Sums<From>& result) {
    first += static_cast<R>(result.first);
    second += static_cast<R>(result.second);
  }
};

/// Sums deviations from a pivot and their squares, which give mean and M2.
template <class R>
struct Deviations {
  using OfResults = Deviations;
  using Result = ShiftedSums<R>;
  using InDouble = ShiftedSums<double>;
  using Gate = NoGate;
  static constexpr const char* kName = "moments";
  static constexpr int kInputs = 1;  // x
  static constexpr bool kHasCenters = false;

  static void add(const R* elements, const Affine<R>& n, R* first, R* second) {
    const R deviation = elements[0] - n.center;
    *first += deviation;
    *second += deviation * deviation;
  }
  static Result result(R count, R pivot, R first, R second) {
    return {pivot, first, second, count};
  }
  template <class From>
  static Pair finish(const ShiftedSums<From>& sums, NoGate::Parameters, std::int64_t) {
    const double shift = static_cast<double>(sums.first) / static_cast<double>(sums.count);
    const double second =
        static_cast<double>(sums.second) - shift * static_cast<double>(sums.first);
    // Rounding may make M2 negative. A NaN stays a NaN.
    return {static_cast<double>(sums.pivot) + shift, second < 0 ? 0 : second};
  }
};

/// Sums dz and dz * (x - mean). The gate makes dz from dy.
template <class R, DzFrom kFrom>
struct Products {
  static constexpr bool kInPlace = kFrom == DzFrom::kInPlace;
  using OfResults = Products<R, kInPlace ? kFrom : DzFrom::kDy>;
  using Result = Sums<R>;
  using InDouble = Sums<double>;
  using Gate = cuda::Gate<R, kFrom>;
  static constexpr const char* kName = "gradient sums";
  static constexpr int kInputs = Gate::kInputs;
  static constexpr bool kHasCenters = true;

  static void add(const R* elements, const Affine<R>& n, R* first, R* second) {
    const R from_center = elements[1] - n.center;
    *first += elements[0];
    *second += elements[0] * (kInPlace ? from_center * n.scale : from_center);
  }
  static Result result(R, R, R first, R second) { return {first, second}; }
  template <class From>
  static Pair finish(const Sums<From>& sums, const ChannelParameters<R>& parameters,
                     std::int64_t c) {
    const auto first = static_cast<double>(sums.first);
    const auto second = static_cast<double>(sums.second);
    return {first, kInPlace ? second / parameters.inv_std[c]
                            : second - rest_of<R>(parameters.mean[c]) * first};
  }
};

/// Sums the elements that a thread visits (visit.h). An access has one channel, or one per element.
template <class T, class Accumulator, int kNumber>
struct Summation {
  using R = Real<T>;
  using Gate = typename Accumulator::Gate;
  static constexpr int kInputs = Accumulator::kInputs;
  static constexpr int kVector = kWidest<T>;
  static constexpr int kTogether = kAccessesTogether<kInputs>;

  const T* const* inputs;
  const Gate* gate;
  bool has_halves;
  Affine<R> channels[kNumber];  // set_pivots() may set the centers
  R first[kNumber];
  R second[kNumber];
  R count[kNumber];

  void clear() {
    GLUON_SYNCBN_UNROLL
    for (int n = 0; n < kNumber; ++n) channels[n].center = first[n] = second[n] = count[n] = R(0);
  }

  /// Adds N accesses, whose loads overlap. If the compiler knows that they are full, it leaves out
  /// all that the others need.
  template <int N>
  void add(const Piece (&pieces)[N]) {
    Pack<T> packs[N][kInputs];
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < N; ++i) {
      GLUON_SYNCBN_UNROLL
      for (int k = 0; k < kInputs; ++k) {
        packs[i][k] = load(inputs[k] + pieces[i].begin, pieces[i].size, has_halves);
      }
    }
    if constexpr (!Accumulator::kHasCenters) {
      if (count[0] == R(0)) set_pivots(pieces, packs);
    }
    // If there is one channel, a call makes sums of its own. Short sums round less.
    constexpr bool kApart = kNumber == 1;
    R firsts[kNumber];
    R seconds[kNumber];
    GLUON_SYNCBN_UNROLL
    for (int n = 0; n < kNumber; ++n) {
      firsts[n] = kApart ? R(0) : first[n];
      seconds[n] = kApart ? R(0) : second[n];
    }
    R counts[kNumber]{};
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < N; ++i) {
      const Piece& piece = pieces[i];
      if (piece.size == 0) continue;
      R elements[kVector][kInputs];
      GLUON_SYNCBN_UNROLL
      for (int j = 0; j < kVector; ++j) {
        GLUON_SYNCBN_UNROLL
        for (int k = 0; k < kInputs; ++k) elements[j][k] = packs[i][k].real(j);
      }
      if constexpr (Accumulator::kHasCenters) {
        gate->template apply<kVector, kNumber>(channels, elements);
      }
      GLUON_SYNCBN_UNROLL
      for (int j = 0; j < kVector; ++j) {
        if (!piece.has(j)) continue;
        const int n = j % kNumber;
        Accumulator::add(elements[j], channels[n], &firsts[n], &seconds[n]);
        if (kNumber > 1) counts[n] += R(1);
      }
      if (kNumber == 1) counts[0] += R(piece.size);
    }
    GLUON_SYNCBN_UNROLL
    for (int n = 0; n < kNumber; ++n) {
      count[n] += counts[n];
      first[n] = kApart ? first[n] + firsts[n] : firsts[n];
      second[n] = kApart ? second[n] + seconds[n] : seconds[n];
    }
  }

  typename Accumulator::Result result(int n) const {
    return Accumulator::result(count[n], channels[n].center, first[n], second[n]);
  }

 private:
  /// Sets each pivot to the mean of the first rows, or of the fuller of two accesses. An outlier as
  /// the pivot would make M2 cancel. An outlier that moves the mean of so few elements makes M2
  /// large as well.
  template <int N>
  void set_pivots(const Piece (&pieces)[N], const Pack<T> (&packs)[N][kInputs]) {
    // The differences from a sample make the mean exact if all elements are equal.
    if constexpr (kNumber == 1) {
      const bool is_second = pieces[1].size > pieces[0].size;
      const Piece piece = is_second ? pieces[1] : pieces[0];
      Pack<T> pack = packs[0][0];
      if (is_second) pack = packs[1][0];
      const R sample = pack.real(0);
      R sum = R(0);
      GLUON_SYNCBN_UNROLL
      for (int j = 1; j < kVector; ++j) {
        if (piece.has(j)) sum += pack.real(j) - sample;
      }
      channels[0].center = sample + sum / R(piece.size > 0 ? piece.size : 1);
    } else {
      GLUON_SYNCBN_UNROLL
      for (int n = 0; n < kNumber; ++n) {
        const R sample = packs[0][0].real(n);
        R sum = R(0);
        GLUON_SYNCBN_UNROLL
        for (int i = 1; i < N; ++i) {
          if (pieces[i].has(n)) sum += packs[i][0].real(n) - sample;
        }
        // Of two rows, one may be missing. The sum is then 0.
        channels[n].center = sample + sum * (R(1) / R(N));
      }
    }
  }
};

}  // namespace gluon_syncbn::cuda

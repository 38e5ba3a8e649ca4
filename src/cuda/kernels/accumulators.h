#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/activations.h"
#include "cuda/kernels/body.h"
#include "cuda/kernels/messages.h"
#include "cuda/kernels/numbers.h"
#include "cuda/kernels/visit.h"
#include "norm/per_channel.h"

// An accumulator defines the sums of a kernel. It has
//
//   kName, kInputs             for messages; the number of input arrays
//   Gate                       replaces dy by dz before the sums (activations.h)
//   kNeedsStatistic            whether the kernel gets a statistic of the channel: the mean, around
//                              which it sums, or in place 1 / sqrt(variance + eps)
//   OfResults                  an accumulator with the same results, for MergeBlocks
//   Result                     a partial result
//   add(elements, center, first, second)
//                              adds the two terms of an element to two sums
//   result(count, center, first, second)
//                              the partial result from two sums around a center
//   Result::merged<kNumber>(results)
//                              merges several partial results in R
//   InDouble::add(result)      merges a partial result into an InDouble, which begins as {}
//   finish(result, statistic)  the two numbers of a message

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
  using Gate = NoGate<R>;
  static constexpr const char* kName = "moments";
  static constexpr int kInputs = 1;  // x
  static constexpr bool kNeedsStatistic = false;

  static void add(const R* elements, R pivot, R* first, R* second) {
    const R deviation = elements[0] - pivot;
    *first += deviation;
    *second += deviation * deviation;
  }
  static Result result(R count, R pivot, R first, R second) {
    return {pivot, first, second, count};
  }
  template <class From>
  static Pair finish(const ShiftedSums<From>& sums, double) {
    const double shift = static_cast<double>(sums.first) / static_cast<double>(sums.count);
    const double second =
        static_cast<double>(sums.second) - shift * static_cast<double>(sums.first);
    // Rounding may make M2 negative. A NaN stays a NaN.
    return {static_cast<double>(sums.pivot) + shift, second < 0 ? 0 : second};
  }
};

/// Sums dz and dz * (x - mean). The gate makes dz from dy.
template <class R, class GateIn>
struct GatedProducts {
  using OfResults = GatedProducts<R, NoGate<R>>;
  using Result = Sums<R>;
  using InDouble = Sums<double>;
  using Gate = GateIn;
  static constexpr const char* kName = "gradient sums";
  static constexpr int kInputs = Gate::kInputs;
  static constexpr bool kNeedsStatistic = true;

  static void add(const R* elements, R mean, R* first, R* second) {
    *first += elements[0];
    *second += elements[0] * (elements[1] - mean);
  }
  static Result result(R, R, R first, R second) { return {first, second}; }
  template <class From>
  static Pair finish(const Sums<From>& sums, double mean) {
    const auto first = static_cast<double>(sums.first);
    return {first, static_cast<double>(sums.second) - rest_of<R>(mean) * first};
  }
};
template <class R>
using Products = GatedProducts<R, NoGate<R>>;
template <class R>
using ProductsByInput = GatedProducts<R, GateByInput<R>>;
template <class R>
using ProductsByOutput = GatedProducts<R, GateByOutput<R>>;

/// The same sums in place. The gate recovers (x - mean) / sqrt(variance + eps), so the sums need no
/// mean.
template <class R>
struct ProductsInPlace : GatedProducts<R, GateInPlace<R>> {
  using OfResults = ProductsInPlace;
  template <class From>
  static Pair finish(const Sums<From>& sums, double inv_std) {
    return {static_cast<double>(sums.first), static_cast<double>(sums.second) / inv_std};
  }
};

/// Sums the elements that a thread visits (visit.h). An access has one channel, or one per element.
template <class T, template <class> class Accumulator, int kNumber>
struct Summation {
  using R = Real<T>;
  using Gate = typename Accumulator<R>::Gate;
  static constexpr int kInputs = Accumulator<R>::kInputs;
  static constexpr int kVector = kWidest<T>;
  static constexpr int kTogether = kAccessesTogether<kInputs>;

  const T* const* inputs;
  const Gate* gate;
  bool has_halves;
  typename Gate::Channel channels[kNumber];
  // Without a statistic, set_pivots() sets the centers.
  R center[kNumber];
  R first[kNumber];
  R second[kNumber];
  R count[kNumber];

  void clear() {
    GLUON_SYNCBN_UNROLL
    for (int n = 0; n < kNumber; ++n) center[n] = first[n] = second[n] = count[n] = R(0);
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
    if constexpr (!Accumulator<R>::kNeedsStatistic) {
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
      gate->template apply<kVector, kNumber>(channels, center, elements);
      GLUON_SYNCBN_UNROLL
      for (int j = 0; j < kVector; ++j) {
        if (!piece.has(j)) continue;
        const int n = j % kNumber;
        Accumulator<R>::add(elements[j], center[n], &firsts[n], &seconds[n]);
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

  typename Accumulator<R>::Result result(int n) const {
    return Accumulator<R>::result(count[n], center[n], first[n], second[n]);
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
      center[0] = sample + sum / R(piece.size > 0 ? piece.size : 1);
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
        center[n] = sample + sum * (R(1) / R(N));
      }
    }
  }
};

}  // namespace gluon_syncbn::cuda

#ifndef GLUON_SYNCBN_CUDA_KERNELS_ACCUMULATORS_H_
#define GLUON_SYNCBN_CUDA_KERNELS_ACCUMULATORS_H_

#include <cstdint>

#include "cuda/kernels/body.h"
#include "cuda/kernels/double_float_pair.h"
#include "cuda/kernels/numbers.h"
#include "norm/moments.h"

// What the passes of sums add up, and what becomes of it: terms have
//
//   kName, kInputs             for messages; arrays that are read together
//   kHasPivot                  whether the center is to be found among the elements
//   add(elements, center, first, second)
//                              adds the two terms of an element
//   Item                       a partial result, which can be merged with others
//   finish(count, center, sums, mean)
//                              that of sums around a center, which for products is `mean`, rounded

namespace gluon_syncbn::cuda {

/// A partial result of a channel.
struct MomentsResult {
  std::int64_t count;
  double first;   // mean
  double second;  // M2

  GLUON_SYNCBN_HOST_DEVICE void clear() {
    count = 0;
    first = second = 0;
  }
  GLUON_SYNCBN_HOST_DEVICE void add(const MomentsResult& other) {
    if (other.count == 0) return;
    merge_channel(count, &first, &second, other.count, other.first, other.second);
    count += other.count;
  }
};

struct SumsResult {
  std::int64_t count;  // of no consequence
  double first;
  double second;

  GLUON_SYNCBN_HOST_DEVICE void clear() {
    count = 0;
    first = second = 0;
  }
  GLUON_SYNCBN_HOST_DEVICE void add(const SumsResult& other) {
    first += other.first;
    second += other.second;
  }
};

/// Deviations from a pivot and their squares, which give mean and M2.
template <class R>
struct Deviations {
  using Result = MomentsResult;
  static constexpr const char* kName = "moments";
  static constexpr int kInputs = 1;  // x
  static constexpr bool kHasPivot = true;

  GLUON_SYNCBN_HOST_DEVICE static void add(const R* elements, R pivot, R* first, R* second) {
    const R deviation = elements[0] - pivot;
    *first += deviation;
    *second += deviation * deviation;
  }
  GLUON_SYNCBN_HOST_DEVICE static Result finish(std::int64_t count, R pivot,
                                                const DoubleFloatPair<R>& sums, double) {
    Result item;
    item.count = count;
    unshift(static_cast<double>(count), static_cast<double>(pivot), sums.first.value(),
            sums.second.value(), &item.first, &item.second);
    return item;
  }
};

/// dy and dy * (x - mean).
template <class R>
struct Products {
  using Result = SumsResult;
  static constexpr const char* kName = "gradient sums";
  static constexpr int kInputs = 2;  // dy, x
  static constexpr bool kHasPivot = false;

  GLUON_SYNCBN_HOST_DEVICE static void add(const R* elements, R mean, R* first, R* second) {
    *first += elements[0];
    *second += elements[0] * (elements[1] - mean);
  }
  GLUON_SYNCBN_HOST_DEVICE static Result finish(std::int64_t count, R,
                                                const DoubleFloatPair<R>& sums, double mean) {
    const double first = sums.first.value();
    return {count, first, sums.second.value() - rest_of<R>(mean) * first};
  }
};

/// What a thread has added up: for one channel, or for each column of its accesses.
template <class R, int kNumber>
struct Partial {
  R center[kNumber];
  DoubleFloatPair<R> sums[kNumber];
};

/// Adds up what a thread visits (visit.h).
template <class T, int kVectorIn, template <class> class Accumulator, int kNumber>
struct Summation {
  using R = Real<T>;
  static constexpr int kInputs = Accumulator<R>::kInputs;
  static constexpr int kVector = kVectorIn;
  static constexpr int kTogether = 4 / kInputs;

  const T* const* inputs;
  Partial<R, kNumber>* partial;

  template <int N>
  GLUON_SYNCBN_HOST_DEVICE void full(const std::int64_t* at) {
    AlignedVector<T, kVector> packs[N][kInputs];
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < N; ++i) {
      GLUON_SYNCBN_UNROLL
      for (int k = 0; k < kInputs; ++k) packs[i][k] = load<kVector>(inputs[k] + at[i]);
    }
    // Few enough to be added up in R.
    R first[kNumber] = {};
    R second[kNumber] = {};
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < N; ++i) {
      GLUON_SYNCBN_UNROLL
      for (int j = 0; j < kVector; ++j) {
        R elements[kInputs];
        GLUON_SYNCBN_UNROLL
        for (int k = 0; k < kInputs; ++k) elements[k] = to_real(packs[i][k].at[j]);
        const int n = j % kNumber;
        Accumulator<R>::add(elements, partial->center[n], &first[n], &second[n]);
      }
    }
    GLUON_SYNCBN_UNROLL
    for (int n = 0; n < kNumber; ++n) {
      partial->sums[n].first.add(first[n]);
      partial->sums[n].second.add(second[n]);
    }
  }
  GLUON_SYNCBN_HOST_DEVICE void one(std::int64_t at, int column) {
    R elements[kInputs];
    GLUON_SYNCBN_UNROLL
    for (int k = 0; k < kInputs; ++k) elements[k] = to_real(inputs[k][at]);
    R first = 0;
    R second = 0;
    Accumulator<R>::add(elements, partial->center[column], &first, &second);
    partial->sums[column].first.add(first);
    partial->sums[column].second.add(second);
  }
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_KERNELS_ACCUMULATORS_H_

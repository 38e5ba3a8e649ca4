#ifndef GLUON_SYNCBN_CORE_CUDA_SUMS_H_
#define GLUON_SYNCBN_CORE_CUDA_SUMS_H_

#include <cstdint>

#include "core/cuda/body.h"
#include "core/cuda/partition.h"
#include "core/cuda/terms.h"
#include "core/cuda/visit.h"

namespace gluon_syncbn::cuda {

/// What `Terms` (Deviations, Products) give for every item of a partition. The center of what a
/// block adds up is the mean that is given, rounded, or for deviations a pivot, the mean of a few
/// elements: of one alone, an outlier would let M2 cancel.
template <class Partition, class T, int kVector, template <class> class Terms>
struct Sums;

template <class T, int kVector, template <class> class Terms>
struct Sums<Runs, T, kVector, Terms> {
  static constexpr const char* kName = Terms<Real<T>>::kName;
  using R = Real<T>;
  static constexpr int kInputs = Terms<R>::kInputs;

  Runs runs;
  const T* inputs[kInputs];
  const double* mean;  // of channels; null for deviations
  double* first;       // of runs.item()
  double* second;

  struct Shared {
    R samples[Terms<R>::kHasPivot ? kThreads : 1];
    TwoSums<R> sums[kThreads];
  };
  struct Thread {
    Runs::Task task;
    R center;
  };
  static constexpr int kSteps = 2 + kLevels;

  GLUON_SYNCBN_HOST_DEVICE void step(int step, std::int64_t block, int thread, Thread* self,
                                     Shared* shared) const {
    if (step == 0) {
      self->task = runs.task(block, thread);
      if constexpr (Terms<R>::kHasPivot) {
        if (self->task.exists && self->task.lane < samples()) {
          shared->samples[thread] = sample(self->task);
        }
      }
      return;
    }
    if (step == 1) {
      Partial<R, 1> partial;
      partial.center[0] = self->task.exists ? center(self->task, thread, *shared) : R(0);
      partial.sums[0].clear();
      Summation<T, kVector, Terms, 1> summation{inputs, &partial};
      visit(runs, self->task, &summation);
      shared->sums[thread] = partial.sums[0];
      self->center = partial.center[0];
      return;
    }
    // The lanes of each channel in a fixed tree.
    const int stride = kThreads >> (step - 1);
    if (stride < runs.lanes && thread % runs.lanes < stride) {
      shared->sums[thread].add(shared->sums[thread + stride]);
    }
    if (step + 1 == kSteps && self->task.exists && self->task.lane == 0) {
      const std::int64_t chunk = self->task.chunk;
      const std::int64_t channel = self->task.channel;
      const std::int64_t item = runs.item(chunk, channel);
      Terms<R>::finish(runs.count(chunk, channel), self->center, shared->sums[thread],
                       mean ? mean[channel] : 0, &first[item], &second[item]);
    }
  }

 private:
  static constexpr int kMostSamples = 16;

  GLUON_SYNCBN_HOST_DEVICE int samples() const {
    return runs.lanes < kMostSamples ? runs.lanes : kMostSamples;
  }
  /// An element of the chunk.
  GLUON_SYNCBN_HOST_DEVICE R sample(const Runs::Task& task) const {
    const std::int64_t begin = runs.begin(task.chunk);
    const std::int64_t unit = begin + divide((runs.end(task.chunk) - begin) * task.lane, samples());
    // The last unit of a run may be empty: then the run ends before it.
    const Runs::Piece piece = Runs::Cursor<kVector>(runs, task.channel, unit).piece();
    return to_real(inputs[0][piece.begin < piece.end ? piece.begin : piece.end - 1]);
  }
  GLUON_SYNCBN_HOST_DEVICE R center(const Runs::Task& task, int thread,
                                    const Shared& shared) const {
    // One return, as CUDA 11.2 warns of a missing one behind two that are chosen at compile time.
    R center = 0;
    if constexpr (Terms<R>::kHasPivot) {
      const R* of_channel = &shared.samples[thread - task.lane];
      // Exact where all are equal.
      R sum = 0;
      for (int i = 1; i < samples(); ++i) sum += of_channel[i] - of_channel[0];
      center = of_channel[0] + sum / static_cast<R>(samples());
    } else {
      static_cast<void>(thread);
      static_cast<void>(shared);
      center = static_cast<R>(mean[task.channel]);
    }
    return center;
  }
};

/// Adds up the sums of the rows of each lane, in a fixed tree in which the values of half of the
/// threads are in shared memory at a time. The threads of the first row get the result.
template <class R, int kVector>
struct RowTree {
  struct Shared {
    TwoSums<R> sums[kVector][kThreads / 2];
  };
  /// For at least 8 lanes.
  static constexpr int kSteps = 6;

  GLUON_SYNCBN_HOST_DEVICE static void step(int step, int thread, int lanes, TwoSums<R>* own,
                                            Shared* shared) {
    const int width = kThreads >> step;  // of the threads that take part
    if (width < lanes) return;
    if (step > 0 && thread < width) {
      const int other = step == 1 ? thread : thread + width;
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < kVector; ++i) own[i].add(shared->sums[i][other]);
    }
    const int half = width / 2;
    if (half >= lanes && thread >= half && thread < width) {
      const int slot = step == 0 ? thread - half : thread;
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < kVector; ++i) shared->sums[i][slot] = own[i];
    }
  }
};

template <class T, int kVector, template <class> class Terms>
struct Sums<Columns, T, kVector, Terms> {
  static constexpr const char* kName = Terms<Real<T>>::kName;
  using R = Real<T>;
  using Tree = RowTree<R, kVector>;
  static constexpr int kInputs = Terms<R>::kInputs;

  Columns matrix;
  const T* inputs[kInputs];
  const double* mean;  // of channels; null for deviations
  double* first;       // of matrix.item()
  double* second;

  using Shared = typename Tree::Shared;
  struct Thread {
    Columns::Task task;
    Partial<R, kVector> partial;
  };
  static constexpr int kSteps = Tree::kSteps;

  GLUON_SYNCBN_HOST_DEVICE void step(int step, std::int64_t block, int thread, Thread* self,
                                     Shared* shared) const {
    Partial<R, kVector>& partial = self->partial;
    if (step == 0) {
      self->task = matrix.task(block, thread);
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < kVector; ++i) {
        partial.center[i] = R(0);
        partial.sums[i].clear();
      }
      if (self->task.exists) set_centers(self->task, partial.center);
      Summation<T, kVector, Terms, kVector> summation{inputs, &partial};
      visit(matrix, self->task, &summation);
    }
    Tree::step(step, thread, matrix.lanes, partial.sums, shared);
    if (step + 1 < kSteps || self->task.row != 0 || !self->task.exists) return;
    const std::int64_t chunk = self->task.chunk;
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kVector; ++i) {
      const std::int64_t column = self->task.column + i;
      const std::int64_t item = chunk * matrix.columns + column;
      Terms<R>::finish(matrix.column_count(chunk, column), partial.center[i], partial.sums[i],
                       mean ? mean[matrix.channel(column)] : 0, &first[item], &second[item]);
    }
  }

 private:
  GLUON_SYNCBN_HOST_DEVICE void set_centers(const Columns::Task& task, R* center) const {
    if constexpr (Terms<R>::kHasPivot) {
      set_pivots(task, center);
    } else {
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < kVector; ++i) {
        center[i] = static_cast<R>(mean[matrix.channel(task.column + i)]);
      }
    }
  }

  GLUON_SYNCBN_HOST_DEVICE void set_pivots(const Columns::Task& task, R* pivot) const {
    constexpr int kSamples = 4;
    const T* x = inputs[0];
    const std::int64_t begin = matrix.begin(task.chunk);
    const std::int64_t rows = matrix.full_end(task.chunk) - begin;
    if (rows > 0) {
      Pack<T, kVector> packs[kSamples];
      GLUON_SYNCBN_UNROLL
      for (int sample = 0; sample < kSamples; ++sample) {
        const std::int64_t row = begin + rows * sample / kSamples;
        packs[sample] = load<kVector>(x + row * matrix.columns + task.column);
      }
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < kVector; ++i) {
        // Exact where all are equal.
        const R first = to_real(packs[0].at[i]);
        R sum = 0;
        GLUON_SYNCBN_UNROLL
        for (int sample = 1; sample < kSamples; ++sample) {
          sum += to_real(packs[sample].at[i]) - first;
        }
        pivot[i] = first + sum / R(kSamples);
      }
    } else {  // there is one row, of which not every column has a part
      const std::int64_t at = begin * matrix.columns + task.column;
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < kVector; ++i) {
        if (at + i < matrix.total) pivot[i] = to_real(x[at + i]);
      }
    }
  }
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CORE_CUDA_SUMS_H_

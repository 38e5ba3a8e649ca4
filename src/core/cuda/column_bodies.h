#ifndef GLUON_SYNCBN_CORE_CUDA_COLUMN_BODIES_H_
#define GLUON_SYNCBN_CORE_CUDA_COLUMN_BODIES_H_

#include <cstdint>

#include "core/cuda/body.h"
#include "core/cuda/numbers.h"
#include "core/cuda/partition.h"
#include "core/cuda/two_sums.h"

namespace gluon_syncbn::cuda {

/// Gives a thread's part of its columns to `visitor`: full rows several at a time, and those
/// elements that a last row has one by one.
template <int kTogether, int kVector, class Visitor>
GLUON_SYNCBN_HOST_DEVICE void visit_rows(const Columns& matrix, const Columns::Task& task,
                                         Visitor* visitor) {
  if (!task.exists) return;
  const int rows_at_once = kThreads / matrix.lanes;
  const std::int64_t full_end = matrix.full_end(task.chunk);
  const std::int64_t distance = rows_at_once * matrix.columns;
  std::int64_t row = matrix.begin(task.chunk) + task.row;
  std::int64_t at[kTogether];
  at[0] = row * matrix.columns + task.column;
  for (; row + (kTogether - 1) * rows_at_once < full_end; row += kTogether * rows_at_once) {
    GLUON_SYNCBN_UNROLL
    for (int i = 1; i < kTogether; ++i) at[i] = at[i - 1] + distance;
    visitor->template full<kTogether>(at);
    at[0] = at[kTogether - 1] + distance;
  }
  for (; row < full_end; row += rows_at_once) {
    visitor->template full<1>(at);
    at[0] += distance;
  }
  if (row >= matrix.end(task.chunk)) return;
  for (int i = 0; i < kVector && at[0] + i < matrix.total; ++i) visitor->one(at[0] + i, i);
}

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

/// Moments of every chunk of every column.
template <class T, int kVector>
struct ColumnMoments {
  static constexpr const char* kName = "moments of columns";
  using R = Real<T>;
  using Tree = RowTree<R, kVector>;

  Columns matrix;
  const T* x;
  double* mean;  // of matrix.item()
  double* m2;

  using Shared = typename Tree::Shared;
  struct Thread {
    Columns::Task task;
    R pivot[kVector];
    TwoSums<R> sums[kVector];
  };
  static constexpr int kSteps = Tree::kSteps;

  GLUON_SYNCBN_HOST_DEVICE void step(int step, std::int64_t block, int thread, Thread* self,
                                     Shared* shared) const {
    if (step == 0) {
      self->task = matrix.task(block, thread);
      set_pivots(self);
      Visitor visitor{x, self->pivot, self->sums};
      visit_rows<4, kVector>(matrix, self->task, &visitor);
    }
    Tree::step(step, thread, matrix.lanes, self->sums, shared);
    if (step + 1 < kSteps || self->task.row != 0 || !self->task.exists) return;
    const std::int64_t chunk = self->task.chunk;
    for (int i = 0; i < kVector; ++i) {
      const std::int64_t column = self->task.column + i;
      unshift(static_cast<double>(matrix.column_count(chunk, column)),
              static_cast<double>(self->pivot[i]), self->sums[i].first.value(),
              self->sums[i].second.value(), &mean[chunk * matrix.columns + column],
              &m2[chunk * matrix.columns + column]);
    }
  }

 private:
  /// The mean of a few elements of a column: of one alone, an outlier would let M2 cancel.
  GLUON_SYNCBN_HOST_DEVICE void set_pivots(Thread* self) const {
    constexpr int kSamples = 4;
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kVector; ++i) {
      self->pivot[i] = R(0);
      self->sums[i].clear();
    }
    if (!self->task.exists) return;
    const std::int64_t begin = matrix.begin(self->task.chunk);
    const std::int64_t rows = matrix.full_end(self->task.chunk) - begin;
    if (rows > 0) {
      Pack<T, kVector> packs[kSamples];
      GLUON_SYNCBN_UNROLL
      for (int sample = 0; sample < kSamples; ++sample) {
        const std::int64_t row = begin + rows * sample / kSamples;
        packs[sample] = load<kVector>(x + row * matrix.columns + self->task.column);
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
        self->pivot[i] = first + sum / R(kSamples);
      }
    } else {  // there is one row, of which not every column has a part
      const std::int64_t at = begin * matrix.columns + self->task.column;
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < kVector; ++i) {
        if (at + i < matrix.total) self->pivot[i] = to_real(x[at + i]);
      }
    }
  }

  struct Visitor {
    const T* x;
    const R* pivot;
    TwoSums<R>* sums;

    template <int N>
    GLUON_SYNCBN_HOST_DEVICE void full(const std::int64_t* at) {
      Pack<T, kVector> packs[N];
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) packs[i] = load<kVector>(x + at[i]);
      GLUON_SYNCBN_UNROLL
      for (int j = 0; j < kVector; ++j) {
        R first = 0;
        R second = 0;
        GLUON_SYNCBN_UNROLL
        for (int i = 0; i < N; ++i) {
          const R deviation = to_real(packs[i].at[j]) - pivot[j];
          first += deviation;
          second += deviation * deviation;
        }
        sums[j].first.add(first);
        sums[j].second.add(second);
      }
    }
    GLUON_SYNCBN_HOST_DEVICE void one(std::int64_t at, int column) {
      const R deviation = to_real(x[at]) - pivot[column];
      sums[column].first.add(deviation);
      sums[column].second.add(deviation * deviation);
    }
  };
};

/// Sums of dy and dy * (x - mean) of every chunk of every column.
template <class T, int kVector>
struct ColumnGradientSums {
  static constexpr const char* kName = "gradient sums of columns";
  using R = Real<T>;
  using Tree = RowTree<R, kVector>;

  Columns matrix;
  const T* dy;
  const T* x;
  const double* mean;    // of channels
  double* sum;           // of matrix.item()
  double* sum_centered;  // of matrix.item()

  using Shared = typename Tree::Shared;
  struct Thread {
    Columns::Task task;
    TwoSums<R> sums[kVector];
  };
  static constexpr int kSteps = Tree::kSteps;

  GLUON_SYNCBN_HOST_DEVICE void step(int step, std::int64_t block, int thread, Thread* self,
                                     Shared* shared) const {
    if (step == 0) {
      self->task = matrix.task(block, thread);
      Visitor visitor{dy, x, {}, self->sums};
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < kVector; ++i) {
        self->sums[i].clear();
        if (self->task.exists) {
          visitor.mean[i] = static_cast<R>(mean[matrix.channel(self->task.column + i)]);
        }
      }
      visit_rows<2, kVector>(matrix, self->task, &visitor);
    }
    Tree::step(step, thread, matrix.lanes, self->sums, shared);
    if (step + 1 < kSteps || self->task.row != 0 || !self->task.exists) return;
    for (int i = 0; i < kVector; ++i) {
      const std::int64_t column = self->task.column + i;
      const std::int64_t item = self->task.chunk * matrix.columns + column;
      const double first = self->sums[i].first.value();
      sum[item] = first;
      sum_centered[item] =
          self->sums[i].second.value() - rest_of<R>(mean[matrix.channel(column)]) * first;
    }
  }

 private:
  struct Visitor {
    const T* dy;
    const T* x;
    R mean[kVector];
    TwoSums<R>* sums;

    template <int N>
    GLUON_SYNCBN_HOST_DEVICE void full(const std::int64_t* at) {
      Pack<T, kVector> dy_packs[N];
      Pack<T, kVector> x_packs[N];
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) {
        dy_packs[i] = load<kVector>(dy + at[i]);
        x_packs[i] = load<kVector>(x + at[i]);
      }
      GLUON_SYNCBN_UNROLL
      for (int j = 0; j < kVector; ++j) {
        R first = 0;
        R second = 0;
        GLUON_SYNCBN_UNROLL
        for (int i = 0; i < N; ++i) {
          const R gradient = to_real(dy_packs[i].at[j]);
          first += gradient;
          second += gradient * (to_real(x_packs[i].at[j]) - mean[j]);
        }
        sums[j].first.add(first);
        sums[j].second.add(second);
      }
    }
    GLUON_SYNCBN_HOST_DEVICE void one(std::int64_t at, int column) {
      const R gradient = to_real(dy[at]);
      sums[column].first.add(gradient);
      sums[column].second.add(gradient * (to_real(x[at]) - mean[column]));
    }
  };
};

/// The values of every column of a tile, each computed by one thread.
template <class Values, int kVector>
struct TileValues {
  Values of_columns[32 * kVector];

  template <class Source>
  GLUON_SYNCBN_HOST_DEVICE void fill(const Columns& matrix, const Columns::Task& task, int thread,
                                     const Source& source) {
    const std::int64_t first = task.column - task.lane * matrix.vector;
    for (int i = thread; i < matrix.lanes * kVector; i += kThreads) {
      if (first + i < matrix.columns) of_columns[i] = source.at(matrix.channel(first + i));
    }
  }
};

template <class T, int kVector>
struct ColumnNormalize {
  static constexpr const char* kName = "normalization of columns";
  using R = Real<T>;

  Columns matrix;
  const T* x;
  AffineSource<R> source;
  bool add;
  T* y;

  using Shared = TileValues<Affine<R>, kVector>;
  struct Thread {
    Columns::Task task;
  };
  static constexpr int kSteps = 2;

  GLUON_SYNCBN_HOST_DEVICE void step(int step, std::int64_t block, int thread, Thread* self,
                                     Shared* shared) const {
    if (step == 0) {
      self->task = matrix.task(block, thread);
      shared->fill(matrix, self->task, thread, source);
      return;
    }
    if (!self->task.exists) return;
    Visitor visitor{x, {}, add, y};
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kVector; ++i) {
      visitor.values[i] = shared->of_columns[self->task.lane * kVector + i];
    }
    visit_rows<4, kVector>(matrix, self->task, &visitor);
  }

 private:
  struct Visitor {
    const T* x;
    Affine<R> values[kVector];
    bool add;
    T* y;

    template <int N>
    GLUON_SYNCBN_HOST_DEVICE void full(const std::int64_t* at) {
      Pack<T, kVector> packs[N];
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) packs[i] = load<kVector>(x + at[i]);
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) {
        R results[kVector];
        GLUON_SYNCBN_UNROLL
        for (int j = 0; j < kVector; ++j) results[j] = of(packs[i].at[j], j);
        store<kVector>(y + at[i], results, add);
      }
    }
    GLUON_SYNCBN_HOST_DEVICE void one(std::int64_t at, int column) {
      const R result = of(x[at], column);
      store<1>(y + at, &result, add);
    }
    GLUON_SYNCBN_HOST_DEVICE R of(T element, int column) const {
      return (to_real(element) - values[column].mean) * values[column].scale + values[column].shift;
    }
  };
};

template <class T, int kVector>
struct ColumnInputGradient {
  static constexpr const char* kName = "input gradient of columns";
  using R = Real<T>;

  Columns matrix;
  const T* dy;
  const T* x;
  GradientSource<R> source;
  bool add;
  T* dx;

  using Shared = TileValues<Gradient<R>, kVector>;
  struct Thread {
    Columns::Task task;
  };
  static constexpr int kSteps = 2;

  GLUON_SYNCBN_HOST_DEVICE void step(int step, std::int64_t block, int thread, Thread* self,
                                     Shared* shared) const {
    if (step == 0) {
      self->task = matrix.task(block, thread);
      shared->fill(matrix, self->task, thread, source);
      return;
    }
    if (!self->task.exists) return;
    Visitor visitor{dy, x, {}, add, dx};
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kVector; ++i) {
      visitor.values[i] = shared->of_columns[self->task.lane * kVector + i];
    }
    visit_rows<2, kVector>(matrix, self->task, &visitor);
  }

 private:
  struct Visitor {
    const T* dy;
    const T* x;
    Gradient<R> values[kVector];
    bool add;
    T* dx;

    template <int N>
    GLUON_SYNCBN_HOST_DEVICE void full(const std::int64_t* at) {
      Pack<T, kVector> dy_packs[N];
      Pack<T, kVector> x_packs[N];
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) {
        dy_packs[i] = load<kVector>(dy + at[i]);
        x_packs[i] = load<kVector>(x + at[i]);
      }
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) {
        R results[kVector];
        GLUON_SYNCBN_UNROLL
        for (int j = 0; j < kVector; ++j) {
          results[j] = of(dy_packs[i].at[j], x_packs[i].at[j], j);
        }
        store<kVector>(dx + at[i], results, add);
      }
    }
    GLUON_SYNCBN_HOST_DEVICE void one(std::int64_t at, int column) {
      const R result = of(dy[at], x[at], column);
      store<1>(dx + at, &result, add);
    }
    GLUON_SYNCBN_HOST_DEVICE R of(T gradient, T element, int column) const {
      const Gradient<R>& v = values[column];
      return v.dy_factor * to_real(gradient) +
             (v.x_factor * (to_real(element) - v.mean) + v.constant);
    }
  };
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CORE_CUDA_COLUMN_BODIES_H_

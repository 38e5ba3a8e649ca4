#ifndef GLUON_SYNCBN_CORE_CUDA_RUN_BODIES_H_
#define GLUON_SYNCBN_CORE_CUDA_RUN_BODIES_H_

#include <cstdint>

#include "core/cuda/body.h"
#include "core/cuda/numbers.h"
#include "core/cuda/partition.h"
#include "core/cuda/two_sums.h"

namespace gluon_syncbn::cuda {

/// Gives a thread's units to `visitor`: full ones several at a time, so that as many loads are
/// under way, and the elements of the others one by one.
template <int kTogether, int kVector, class Visitor>
GLUON_SYNCBN_HOST_DEVICE void visit_units(const Runs& runs, const Runs::Task& task,
                                          Visitor* visitor) {
  if (task.size == 0) return;
  Runs::Cursor<kVector> cursor(runs, task.channel, task.first);
  std::int64_t left = task.size;
  if (runs.is_even()) {
    std::int64_t at[kTogether];
    for (; left >= kTogether; left -= kTogether) {
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        at[i] = cursor.even_begin();
        cursor.advance();
      }
      visitor->template full<kTogether>(at);
    }
    for (; left > 0; --left) {
      at[0] = cursor.even_begin();
      visitor->template full<1>(at);
      cursor.advance();
    }
    return;
  }
  for (; left > 0; --left) {
    const Runs::Piece piece = cursor.piece();
    if (piece.end - piece.begin == kVector) {
      visitor->template full<1>(&piece.begin);
    } else {
      for (std::int64_t at = piece.begin; at < piece.end; ++at) visitor->one(at);
    }
    cursor.advance();
  }
}

/// Adds up what the lanes of each channel have, in a fixed tree. Lane 0 gets the sum.
template <class R>
GLUON_SYNCBN_HOST_DEVICE void add_lanes(int level, int thread, int lanes, TwoSums<R>* sums) {
  const int stride = kThreads >> (level + 1);
  if (stride < lanes && thread % lanes < stride) sums[thread].add(sums[thread + stride]);
}

/// Moments of every chunk of every channel.
template <class T, int kVector>
struct RunMoments {
  static constexpr const char* kName = "moments of runs";
  using R = Real<T>;

  Runs runs;
  const T* x;
  double* mean;  // of runs.item()
  double* m2;

  struct Shared {
    R samples[kThreads];
    TwoSums<R> sums[kThreads];
  };
  struct Thread {
    Runs::Task task;
    R pivot;
  };
  static constexpr int kSteps = 2 + kLevels;

  GLUON_SYNCBN_HOST_DEVICE void step(int step, std::int64_t block, int thread, Thread* self,
                                     Shared* shared) const {
    const int samples = runs.lanes < kSamples ? runs.lanes : kSamples;
    if (step == 0) {
      self->task = runs.task(block, thread);
      if (self->task.exists && self->task.lane < samples) {
        shared->samples[thread] = sample(self->task, samples);
      }
      return;
    }
    if (step == 1) {
      Visitor visitor{x, R(0), {}};
      visitor.sums.clear();
      if (self->task.exists) {
        const R* of_channel = &shared->samples[thread - self->task.lane];
        // Exact where all are equal.
        R sum = 0;
        for (int i = 1; i < samples; ++i) sum += of_channel[i] - of_channel[0];
        visitor.pivot = of_channel[0] + sum / static_cast<R>(samples);
      }
      visit_units<kTogether, kVector>(runs, self->task, &visitor);
      shared->sums[thread] = visitor.sums;
      self->pivot = visitor.pivot;
      return;
    }
    add_lanes(step - 2, thread, runs.lanes, shared->sums);
    if (step + 1 == kSteps && self->task.exists && self->task.lane == 0) {
      const std::int64_t item = runs.item(self->task.chunk, self->task.channel);
      const TwoSums<R>& sums = shared->sums[thread];
      unshift(static_cast<double>(runs.count(self->task.chunk, self->task.channel)),
              static_cast<double>(self->pivot), sums.first.value(), sums.second.value(),
              &mean[item], &m2[item]);
    }
  }

 private:
  static constexpr int kTogether = 4;
  // Their mean is the pivot: of one alone, an outlier would let M2 cancel.
  static constexpr int kSamples = 16;

  /// An element of the chunk.
  GLUON_SYNCBN_HOST_DEVICE R sample(const Runs::Task& task, int samples) const {
    const std::int64_t begin = runs.begin(task.chunk);
    const std::int64_t unit = begin + divide((runs.end(task.chunk) - begin) * task.lane, samples);
    // The last unit of a run may be empty: then the run ends before it.
    const Runs::Piece piece = Runs::Cursor<kVector>(runs, task.channel, unit).piece();
    return to_real(x[piece.begin < piece.end ? piece.begin : piece.end - 1]);
  }

  struct Visitor {
    const T* x;
    R pivot;
    TwoSums<R> sums;

    template <int N>
    GLUON_SYNCBN_HOST_DEVICE void full(const std::int64_t* at) {
      Pack<T, kVector> packs[N];
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) packs[i] = load<kVector>(x + at[i]);
      // Few enough to be added up in R.
      R first = 0;
      R second = 0;
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) {
        GLUON_SYNCBN_UNROLL
        for (int j = 0; j < kVector; ++j) {
          const R deviation = to_real(packs[i].at[j]) - pivot;
          first += deviation;
          second += deviation * deviation;
        }
      }
      sums.first.add(first);
      sums.second.add(second);
    }
    GLUON_SYNCBN_HOST_DEVICE void one(std::int64_t at) {
      const R deviation = to_real(x[at]) - pivot;
      sums.first.add(deviation);
      sums.second.add(deviation * deviation);
    }
  };
};

/// Sums of dy and dy * (x - mean) of every chunk of every channel.
template <class T, int kVector>
struct RunGradientSums {
  static constexpr const char* kName = "gradient sums of runs";
  using R = Real<T>;

  Runs runs;
  const T* dy;
  const T* x;
  const double* mean;    // of channels
  double* sum;           // of runs.item()
  double* sum_centered;  // of runs.item()

  struct Shared {
    TwoSums<R> sums[kThreads];
  };
  struct Thread {
    Runs::Task task;
  };
  static constexpr int kSteps = 1 + kLevels;

  GLUON_SYNCBN_HOST_DEVICE void step(int step, std::int64_t block, int thread, Thread* self,
                                     Shared* shared) const {
    if (step == 0) {
      self->task = runs.task(block, thread);
      Visitor visitor{
          dy, x, self->task.exists ? static_cast<R>(mean[self->task.channel]) : R(0), {}};
      visitor.sums.clear();
      visit_units<kTogether, kVector>(runs, self->task, &visitor);
      shared->sums[thread] = visitor.sums;
      return;
    }
    add_lanes(step - 1, thread, runs.lanes, shared->sums);
    if (step + 1 == kSteps && self->task.exists && self->task.lane == 0) {
      const std::int64_t item = runs.item(self->task.chunk, self->task.channel);
      const TwoSums<R>& sums = shared->sums[thread];
      sum[item] = sums.first.value();
      sum_centered[item] =
          sums.second.value() - rest_of<R>(mean[self->task.channel]) * sums.first.value();
    }
  }

 private:
  static constexpr int kTogether = 2;

  struct Visitor {
    const T* dy;
    const T* x;
    R mean;
    TwoSums<R> sums;

    template <int N>
    GLUON_SYNCBN_HOST_DEVICE void full(const std::int64_t* at) {
      Pack<T, kVector> dy_packs[N];
      Pack<T, kVector> x_packs[N];
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) {
        dy_packs[i] = load<kVector>(dy + at[i]);
        x_packs[i] = load<kVector>(x + at[i]);
      }
      R first = 0;
      R second = 0;
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) {
        GLUON_SYNCBN_UNROLL
        for (int j = 0; j < kVector; ++j) {
          const R gradient = to_real(dy_packs[i].at[j]);
          first += gradient;
          second += gradient * (to_real(x_packs[i].at[j]) - mean);
        }
      }
      sums.first.add(first);
      sums.second.add(second);
    }
    GLUON_SYNCBN_HOST_DEVICE void one(std::int64_t at) {
      const R gradient = to_real(dy[at]);
      sums.first.add(gradient);
      sums.second.add(gradient * (to_real(x[at]) - mean));
    }
  };
};

template <class T, int kVector>
struct RunNormalize {
  static constexpr const char* kName = "normalization of runs";
  using R = Real<T>;

  Runs runs;
  const T* x;
  AffineSource<R> source;
  bool add;
  T* y;

  struct Shared {
    Affine<R> values[kThreads];  // of every channel of the block
  };
  struct Thread {
    Runs::Task task;
  };
  static constexpr int kSteps = 2;

  GLUON_SYNCBN_HOST_DEVICE void step(int step, std::int64_t block, int thread, Thread* self,
                                     Shared* shared) const {
    if (step == 0) {
      self->task = runs.task(block, thread);
      if (self->task.exists && self->task.lane == 0) {
        shared->values[thread / runs.lanes] = source.at(self->task.channel);
      }
      return;
    }
    Visitor visitor{x, shared->values[thread / runs.lanes], add, y};
    visit_units<4, kVector>(runs, self->task, &visitor);
  }

 private:
  struct Visitor {
    const T* x;
    Affine<R> values;
    bool add;
    T* y;

    template <int N>
    GLUON_SYNCBN_HOST_DEVICE void full(const std::int64_t* at) {
      Pack<T, kVector> packs[N];
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) packs[i] = load<kVector>(x + at[i]);
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) {
        Real<T> results[kVector];
        GLUON_SYNCBN_UNROLL
        for (int j = 0; j < kVector; ++j) results[j] = of(packs[i].at[j]);
        store<kVector>(y + at[i], results, add);
      }
    }
    GLUON_SYNCBN_HOST_DEVICE void one(std::int64_t at) {
      const R result = of(x[at]);
      store<1>(y + at, &result, add);
    }
    GLUON_SYNCBN_HOST_DEVICE R of(T element) const {
      return (to_real(element) - values.mean) * values.scale + values.shift;
    }
  };
};

template <class T, int kVector>
struct RunInputGradient {
  static constexpr const char* kName = "input gradient of runs";
  using R = Real<T>;

  Runs runs;
  const T* dy;
  const T* x;
  GradientSource<R> source;
  bool add;
  T* dx;

  struct Shared {
    Gradient<R> values[kThreads];  // of every channel of the block
  };
  struct Thread {
    Runs::Task task;
  };
  static constexpr int kSteps = 2;

  GLUON_SYNCBN_HOST_DEVICE void step(int step, std::int64_t block, int thread, Thread* self,
                                     Shared* shared) const {
    if (step == 0) {
      self->task = runs.task(block, thread);
      if (self->task.exists && self->task.lane == 0) {
        shared->values[thread / runs.lanes] = source.at(self->task.channel);
      }
      return;
    }
    Visitor visitor{dy, x, shared->values[thread / runs.lanes], add, dx};
    visit_units<2, kVector>(runs, self->task, &visitor);
  }

 private:
  struct Visitor {
    const T* dy;
    const T* x;
    Gradient<R> values;
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
        Real<T> results[kVector];
        GLUON_SYNCBN_UNROLL
        for (int j = 0; j < kVector; ++j) results[j] = of(dy_packs[i].at[j], x_packs[i].at[j]);
        store<kVector>(dx + at[i], results, add);
      }
    }
    GLUON_SYNCBN_HOST_DEVICE void one(std::int64_t at) {
      const R result = of(dy[at], x[at]);
      store<1>(dx + at, &result, add);
    }
    GLUON_SYNCBN_HOST_DEVICE R of(T gradient, T element) const {
      return values.dy_factor * to_real(gradient) +
             (values.x_factor * (to_real(element) - values.mean) + values.constant);
    }
  };
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CORE_CUDA_RUN_BODIES_H_

#ifndef GLUON_SYNCBN_CUDA_KERNELS_REDUCE_H_
#define GLUON_SYNCBN_CUDA_KERNELS_REDUCE_H_

#include <cstdint>

#include "cuda/kernels/accumulators.h"
#include "cuda/kernels/between_blocks.h"
#include "cuda/kernels/body.h"
#include "cuda/kernels/tiling.h"
#include "cuda/kernels/visit.h"

namespace gluon_syncbn::cuda {

/// Two numbers for each of several things, the second ones behind all the first ones: a message, or
/// partial results.
struct Pairs {
  double* first;
  std::int64_t size;

  template <class Result>
  GLUON_SYNCBN_HOST_DEVICE void put(std::int64_t i, const Result& item) const {
    first[i] = item.first;
    first[size + i] = item.second;
  }
  template <class Result>
  GLUON_SYNCBN_HOST_DEVICE Result get(std::int64_t i, std::int64_t count) const {
    return {count, load_cg(&first[i]), load_cg(&first[size + i])};
  }
};

/// Merges the items of threads that are `width` apart, in a fixed tree: the first `width` threads
/// get the result. `level` counts from 0.
template <class Result>
GLUON_SYNCBN_HOST_DEVICE void merge_items(int level, int width, int thread, Result* items) {
  const int stride = kThreads >> (level + 1);
  if (stride >= width && thread < stride) items[thread].add(items[thread + stride]);
}

/// What `Accumulator` (Deviations, Products) give for every channel. Every block leaves what it has
/// for whoever of the blocks of the same channels comes last, and this one merges it, in a fixed
/// order. The center of what a block adds up is the mean that is given, rounded, or for deviations
/// a pivot, the mean of a few elements: of one alone, an outlier would let M2 cancel.
template <class Tiling, class T, int kVector, template <class> class Accumulator>
struct Reduce;

template <class T, int kVector, template <class> class Accumulator>
struct Reduce<ChannelFirst, T, kVector, Accumulator> {
  static constexpr const char* kName = Accumulator<Real<T>>::kName;
  using R = Real<T>;
  static constexpr int kInputs = Accumulator<R>::kInputs;

  ChannelFirst runs;
  const T* inputs[kInputs];
  const double* mean;       // of channels; null for deviations
  Pairs of_chunks;          // of chunk * channels + channel
  std::uint32_t* counters;  // of groups of channels
  Pairs message;            // of channels

  using Result = typename Accumulator<R>::Result;
  struct Shared {
    R samples[Accumulator<R>::kHasPivot ? kThreads : 1];
    union {
      DoubleFloatPair<R> sums[kThreads];
      Result items[kThreads];
    };
    bool is_last;
  };
  struct Thread {
    ChannelFirst::Task task;
    R center;
  };

  static constexpr int kMerge = 2 + kLevels;
  static constexpr int kSteps = kMerge + 2 + kLevels;

  GLUON_SYNCBN_HOST_DEVICE bool step(int step, std::int64_t block, int thread, Thread* self,
                                     Shared* shared) const {
    if (step < kMerge) {
      add_up(step, block, thread, self, shared);
      return step + 1 < kMerge || runs.chunks > 1;
    }
    if (step == kMerge) {
      if (thread == 0) {
        shared->is_last = is_last_block(&counters[divide(block, runs.chunks)], runs.chunks);
      }
      return true;
    }
    if (!shared->is_last) return false;
    const int width = kThreads / runs.lanes;
    const std::int64_t channel = runs.channels_of(block).first + thread % width;
    if (step == kMerge + 1) {
      Result own;
      own.clear();
      if (channel < runs.channels) {
        for (std::int64_t i = thread / width; i < runs.chunks; i += runs.lanes) {
          own.add(
              of_chunks.template get<Result>(i * runs.channels + channel, runs.count(i, channel)));
        }
      }
      shared->items[thread] = own;
      return true;
    }
    merge_items(step - kMerge - 2, width, thread, shared->items);
    if (step + 1 == kSteps && thread < width && channel < runs.channels) {
      message.put(channel, shared->items[thread]);
    }
    return true;
  }

 private:
  GLUON_SYNCBN_HOST_DEVICE void add_up(int step, std::int64_t block, int thread, Thread* self,
                                       Shared* shared) const {
    if (step == 0) {
      self->task = runs.task(block, thread);
      if constexpr (Accumulator<R>::kHasPivot) {
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
      Summation<T, kVector, Accumulator, 1> summation{inputs, &partial};
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
    if (step + 1 == kMerge && self->task.exists && self->task.lane == 0) {
      const std::int64_t chunk = self->task.chunk;
      const std::int64_t channel = self->task.channel;
      const Result item = Accumulator<R>::finish(runs.count(chunk, channel), self->center,
                                                 shared->sums[thread], mean ? mean[channel] : 0);
      if (runs.chunks > 1) {
        of_chunks.put(chunk * runs.channels + channel, item);
      } else {
        message.put(channel, item);
      }
    }
  }

  static constexpr int kMostSamples = 16;

  GLUON_SYNCBN_HOST_DEVICE int samples() const {
    return runs.lanes < kMostSamples ? runs.lanes : kMostSamples;
  }
  /// An element of the chunk.
  GLUON_SYNCBN_HOST_DEVICE R sample(const ChannelFirst::Task& task) const {
    const std::int64_t begin = runs.begin(task.chunk);
    const std::int64_t unit = begin + divide((runs.end(task.chunk) - begin) * task.lane, samples());
    // The last unit of a run may be empty: then the run ends before it.
    const ChannelFirst::Piece piece =
        ChannelFirst::Cursor<kVector>(runs, task.channel, unit).piece();
    return to_real(inputs[0][piece.begin < piece.end ? piece.begin : piece.end - 1]);
  }
  GLUON_SYNCBN_HOST_DEVICE R center(const ChannelFirst::Task& task, int thread,
                                    const Shared& shared) const {
    // One return, as CUDA 11.2 warns of a missing one behind two that are chosen at compile time.
    R center = 0;
    if constexpr (Accumulator<R>::kHasPivot) {
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
    DoubleFloatPair<R> sums[kVector][kThreads / 2];
  };
  /// For at least 8 lanes.
  static constexpr int kSteps = 6;

  GLUON_SYNCBN_HOST_DEVICE static void step(int step, int thread, int lanes,
                                            DoubleFloatPair<R>* own, Shared* shared) {
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

template <class T, int kVector, template <class> class Accumulator>
struct Reduce<ChannelLast, T, kVector, Accumulator> {
  static constexpr const char* kName = Accumulator<Real<T>>::kName;
  using R = Real<T>;
  using Tree = RowTree<R, kVector>;
  static constexpr int kInputs = Accumulator<R>::kInputs;

  ChannelLast matrix;
  const T* inputs[kInputs];
  const double* mean;       // of channels; null for deviations
  Pairs of_chunks;          // of chunk * columns + column
  Pairs of_groups;          // of group * columns + column
  Pairs of_columns;         // the message, where every channel has one column
  std::uint32_t* counters;  // of all groups in all tiles, of tiles, and one
  Pairs message;            // of channels

  using Result = typename Accumulator<R>::Result;
  struct Shared {
    union {
      typename Tree::Shared tree;
      Result items[kThreads];
    };
    bool is_last;
  };
  struct Thread {
    ChannelLast::Task task;
    Partial<R, kVector> partial;
  };

  // Each merge: who comes last, its items, and a tree for at least 8 columns.
  static constexpr int kTreeLevels = 5;
  static constexpr int kGroup = Tree::kSteps;
  static constexpr int kTile = kGroup + 2 + kTreeLevels;
  static constexpr int kChannels = kTile + 2 + kTreeLevels;
  static constexpr int kSteps = kChannels + 2;

  GLUON_SYNCBN_HOST_DEVICE bool step(int step, std::int64_t block, int thread, Thread* self,
                                     Shared* shared) const {
    if (step < kGroup) {
      add_up(step, block, thread, self, shared);
      return step + 1 < kGroup || matrix.chunks > 1 || matrix.channel_columns() > 1;
    }
    const std::int64_t tile = remainder(block, matrix.tiles);
    const std::int64_t group = divide(divide(block, matrix.tiles), matrix.group_chunks);
    if (step < kTile) {
      if (matrix.chunks == 1) return true;
      const std::int64_t begin = group * matrix.group_chunks;
      return merge(step - kGroup, tile, thread, of_chunks, begin, matrix.group_end(group),
                   &counters[group * matrix.tiles + tile], group, shared);
    }
    if (step < kChannels) {
      if (matrix.groups == 1) return true;
      return merge(step - kTile, tile, thread, of_groups, 0, matrix.groups,
                   &counters[matrix.groups * matrix.tiles + tile], kAllGroups, shared);
    }
    if (matrix.channel_columns() == 1) return false;
    if (step == kChannels) {
      if (thread == 0) {
        shared->is_last =
            is_last_block(&counters[(matrix.groups + 1) * matrix.tiles], matrix.tiles);
      }
      return true;
    }
    if (!shared->is_last) return false;
    for (std::int64_t channel = thread; channel < matrix.channels; channel += kThreads) {
      Result all;
      all.clear();
      for (std::int64_t i = 0; i < matrix.channel_columns(); ++i) {
        const std::int64_t column = matrix.channel_column(i, channel);
        all.add(of_columns.template get<Result>(column, matrix.count(0, matrix.chunks, column)));
      }
      message.put(channel, all);
    }
    return true;
  }

 private:
  static constexpr std::int64_t kAllGroups = -1;

  /// Merges the items from `begin` to `end` of the columns of a tile.
  GLUON_SYNCBN_HOST_DEVICE bool merge(int step, std::int64_t tile, int thread, const Pairs& from,
                                      std::int64_t begin, std::int64_t end, std::uint32_t* counter,
                                      std::int64_t group, Shared* shared) const {
    if (step == 0) {
      if (thread == 0) shared->is_last = is_last_block(counter, end - begin);
      return true;
    }
    if (!shared->is_last) return false;
    const int width = matrix.lanes * kVector;
    const std::int64_t column = tile * width + thread % width;
    if (step == 1) {
      Result own;
      own.clear();
      if (column < matrix.columns) {
        for (std::int64_t i = begin + thread / width; i < end; i += kThreads / width) {
          const std::int64_t count = group == kAllGroups ? matrix.count(i * matrix.group_chunks,
                                                                        matrix.group_end(i), column)
                                                         : matrix.count(i, i + 1, column);
          own.add(from.template get<Result>(i * matrix.columns + column, count));
        }
      }
      shared->items[thread] = own;
      return true;
    }
    merge_items(step - 2, width, thread, shared->items);
    if (step == 1 + kTreeLevels && thread < width && column < matrix.columns) {
      if (group == kAllGroups || matrix.groups == 1) {
        of_columns.put(column, shared->items[thread]);
      } else {
        of_groups.put(group * matrix.columns + column, shared->items[thread]);
      }
    }
    return true;
  }

  GLUON_SYNCBN_HOST_DEVICE void add_up(int step, std::int64_t block, int thread, Thread* self,
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
      Summation<T, kVector, Accumulator, kVector> summation{inputs, &partial};
      visit(matrix, self->task, &summation);
    }
    Tree::step(step, thread, matrix.lanes, partial.sums, &shared->tree);
    if (step + 1 < Tree::kSteps || self->task.row != 0 || !self->task.exists) return;
    const std::int64_t chunk = self->task.chunk;
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kVector; ++i) {
      const std::int64_t column = self->task.column + i;
      const Result item =
          Accumulator<R>::finish(matrix.count(chunk, chunk + 1, column), partial.center[i],
                                 partial.sums[i], mean ? mean[matrix.channel(column)] : 0);
      if (matrix.chunks > 1) {
        of_chunks.put(chunk * matrix.columns + column, item);
      } else {
        of_columns.put(column, item);
      }
    }
  }

  GLUON_SYNCBN_HOST_DEVICE void set_centers(const ChannelLast::Task& task, R* center) const {
    if constexpr (Accumulator<R>::kHasPivot) {
      set_pivots(task, center);
    } else {
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < kVector; ++i) {
        center[i] = static_cast<R>(mean[matrix.channel(task.column + i)]);
      }
    }
  }

  GLUON_SYNCBN_HOST_DEVICE void set_pivots(const ChannelLast::Task& task, R* pivot) const {
    constexpr int kSamples = 4;
    const T* x = inputs[0];
    const std::int64_t begin = matrix.begin(task.chunk);
    const std::int64_t rows = matrix.full_end(task.chunk) - begin;
    if (rows > 0) {
      AlignedVector<T, kVector> packs[kSamples];
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

#endif  // GLUON_SYNCBN_CUDA_KERNELS_REDUCE_H_

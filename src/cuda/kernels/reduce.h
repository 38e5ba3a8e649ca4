#ifndef GLUON_SYNCBN_CUDA_KERNELS_REDUCE_H_
#define GLUON_SYNCBN_CUDA_KERNELS_REDUCE_H_

#include <cstdint>

#include "cuda/kernels/accumulators.h"
#include "cuda/kernels/between_blocks.h"
#include "cuda/kernels/body.h"
#include "cuda/kernels/tiling.h"
#include "cuda/kernels/visit.h"

namespace gluon_syncbn::cuda {

/// The way in which a block merges `number` partial results of each of its channels or columns. A
/// thread merges `share` consecutive results into a part, and one thread merges the `parts`. The
/// order depends on the number alone.
struct Merge {
  std::uint32_t number;
  std::uint32_t share;
  std::uint32_t parts;

  static Merge of(std::uint32_t number, std::uint32_t threads) {
    // One thread merges so many parts in a few rounds.
    constexpr std::uint32_t kMostParts = 32;
    const std::uint32_t most = threads < kMostParts ? threads : kMostParts;
    const std::uint32_t rounds = (number + most * kMergedAtOnce - 1) / (most * kMergedAtOnce);
    const std::uint32_t share = rounds * kMergedAtOnce;
    return {number, share, (number + share - 1) / share};
  }
};

/// Merges get(begin), ..., get(end - 1) in this order. The loads of several results overlap.
template <class InDouble, class Result, class Get>
GLUON_SYNCBN_HOST_DEVICE InDouble merge_range(std::uint32_t begin, std::uint32_t end,
                                              const Get& get) {
  // So many results fit into registers.
  constexpr int kAtOnce = sizeof(Result) > 16 ? kMergedAtOnce / 2 : kMergedAtOnce;
  InDouble all{};
  for (std::uint32_t i = begin; i < end; i += kAtOnce) {
    Result results[kAtOnce];
    GLUON_SYNCBN_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      results[k] = {};
      if (i + k < end) results[k] = get(i + k);
    }
    GLUON_SYNCBN_UNROLL
    for (int k = 0; k < kAtOnce; ++k) all.add(results[k]);
  }
  return all;
}

/// The sums of every channel that `Accumulator` defines. Every block leaves its partial results in
/// memory, and the last block of the same channels merges them in a fixed order.
template <class Tiling, class T, int kVector, template <class> class Accumulator>
struct Reduce;

template <class T, int kVector, template <class> class Accumulator>
struct Reduce<ChannelFirst, T, kVector, Accumulator> {
  static constexpr const char* kName = Accumulator<Real<T>>::kName;
  using R = Real<T>;
  using Sum = Summation<T, kVector, Accumulator, 1>;
  using Result = typename Accumulator<R>::Result;
  using InDouble = typename Accumulator<R>::InDouble;
  using Gate = typename Accumulator<R>::Gate;
  static constexpr int kInputs = Accumulator<R>::kInputs;

  ChannelFirst runs;
  const T* inputs[kInputs];
  const double* statistic;  // of channels, if the accumulator needs one
  Gate gate;
  Result* of_chunks;        // at channel * chunks + chunk
  Merge merge;              // of chunks
  std::uint32_t* counters;  // of channels
  Pairs message;            // of channels

  static constexpr std::uint32_t kAtOnce = kMergedAtOnce;
  struct Shared {
    union {
      Result of_threads[kThreads];
      InDouble parts[kThreads];
    };
    Result merged[kThreads / kAtOnce];
    bool is_last;
  };
  struct Thread {};

  static constexpr int kSteps = 5;
  static constexpr int kResident = kResidentBlocks<R, Gate::kIsActivated>;

  GLUON_SYNCBN_HOST_DEVICE bool step(int step, std::uint32_t block, std::uint32_t thread, Thread*,
                                     Shared* shared) const {
    if (step == 0) {
      shared->of_threads[thread] = sum(runs.template task<kVector>(block, thread));
      return true;
    }
    if (step == 1) {
      if (thread < kThreads / kAtOnce) merge_lanes(thread, shared);
      return true;
    }
    if (step == 2) {
      if (thread < runs.channels_at_once()) {
        const std::uint32_t channel =
            runs.chunks.quotient(block) * runs.channels_at_once() + thread;
        if (channel < runs.channels) leave(block, channel, merged_of(thread, *shared), shared);
      }
      return runs.chunks.divisor > 1;
    }
    if (!shared->is_last) return false;
    const std::uint32_t channel = runs.chunks.quotient(block);
    if (step == 3) {
      if (thread < merge.parts) {
        const Result* from = &of_chunks[channel * runs.chunks.divisor];
        const std::uint32_t begin = thread * merge.share;
        const std::uint32_t end =
            merge.number - begin < merge.share ? merge.number : begin + merge.share;
        const auto part = merge_range<InDouble, Result>(
            begin, end, [from](std::uint32_t i) { return load_cg(&from[i]); });
        if (merge.parts == 1) {
          message.put(channel, Accumulator<R>::finish(part, statistic_of(channel)));
        } else {
          shared->parts[thread] = part;
        }
      }
      return merge.parts > 1;
    }
    if (thread == 0) {
      const auto all = merge_range<InDouble, InDouble>(
          0, merge.parts, [shared](std::uint32_t i) { return shared->parts[i]; });
      message.put(channel, Accumulator<R>::finish(all, statistic_of(channel)));
    }
    return true;
  }

 private:
  GLUON_SYNCBN_HOST_DEVICE double statistic_of(std::uint32_t channel) const {
    return Accumulator<R>::kNeedsStatistic ? statistic[channel] : 0;
  }

  GLUON_SYNCBN_HOST_DEVICE void leave(std::uint32_t block, std::uint32_t channel, const Result& all,
                                      Shared* shared) const {
    if (runs.chunks.divisor == 1) {
      message.put(channel, Accumulator<R>::finish(all, statistic_of(channel)));
    } else {  // the block has one channel, and this is its first thread
      of_chunks[block] = all;
      shared->is_last = is_last_block(&counters[channel], runs.chunks.divisor);
    }
  }

  GLUON_SYNCBN_HOST_DEVICE Result sum(const ChannelFirst::Task& task) const {
    Sum sum;
    sum.inputs = inputs;
    sum.gate = &gate;
    sum.clear();
    if (task.exists) {
      if constexpr (Accumulator<R>::kNeedsStatistic) {
        sum.channels[0] = gate.at(statistic, task.channel, &sum.center[0]);
      }
      auto walk = Walk<ChannelFirst, kVector>::of(runs, task);
      visit(runs, &walk, &sum);
    }
    return sum.result(0);
  }

  /// Merges lanes of a channel that are `distance` apart.
  GLUON_SYNCBN_HOST_DEVICE void merge_lanes(std::uint32_t thread, Shared* shared) const {
    const std::uint32_t distance = runs.lanes / kAtOnce;
    const std::uint32_t first = (thread & ~(distance - 1)) * kAtOnce + (thread & (distance - 1));
    Result results[kAtOnce];
    GLUON_SYNCBN_UNROLL
    for (std::uint32_t i = 0; i < kAtOnce; ++i)
      results[i] = shared->of_threads[first + i * distance];
    shared->merged[thread] = Result::template merged<kAtOnce>(results);
  }
  GLUON_SYNCBN_HOST_DEVICE Result merged_of(std::uint32_t slot, const Shared& shared) const {
    const std::uint32_t number = runs.lanes / kAtOnce;
    const Result* from = &shared.merged[slot * number];
    Result all{};
    for (std::uint32_t begin = 0; begin < number; begin += kAtOnce) {
      Result results[kAtOnce];
      GLUON_SYNCBN_UNROLL
      for (std::uint32_t i = 0; i < kAtOnce; ++i) {
        results[i] = {};
        if (begin + i < number) results[i] = from[begin + i];
      }
      const Result both[] = {all, Result::template merged<kAtOnce>(results)};
      all = begin == 0 ? both[1] : Result::template merged<2>(both);
    }
    return all;
  }
};

template <class T, int kVector, template <class> class Accumulator>
struct Reduce<ChannelLast, T, kVector, Accumulator> {
  static constexpr const char* kName = Accumulator<Real<T>>::kName;
  using R = Real<T>;
  using Sum = Summation<T, kVector, Accumulator, kVector>;
  using Result = typename Accumulator<R>::Result;
  using InDouble = typename Accumulator<R>::InDouble;
  using Gate = typename Accumulator<R>::Gate;
  static constexpr int kInputs = Accumulator<R>::kInputs;

  ChannelLast matrix;
  const T* inputs[kInputs];
  const double* statistic;  // of channels, if the accumulator needs one
  Gate gate;
  Result* of_chunks;     // at chunk * columns + column
  InDouble* of_groups;   // at group * columns + column
  InDouble* of_columns;  // if channels have several columns
  Merge merge_chunks;    // of a group; the last group may have fewer
  Merge merge_groups;
  std::uint32_t* counters;  // of all groups in all tiles, of tiles, and one
  Pairs message;            // of channels

  static constexpr std::uint32_t kLanes = ChannelLast::kLanes<kVector>;
  static constexpr std::uint32_t kRows = ChannelLast::kRowsAtOnce<kVector>;
  static constexpr std::uint32_t kColumns = ChannelLast::kTileColumns<kVector>;
  static constexpr std::uint32_t kAtOnce = kMergedAtOnce;
  static constexpr std::uint32_t kParts = kRows / kAtOnce;  // of a column
  static constexpr std::uint32_t kColumnThreads = kThreads / kColumns;
  static_assert(kRows % kAtOnce == 0 && kColumns * kParts <= kThreads);

  struct Shared {
    union {
      // Both have the order of column_of_place().
      Result of_threads[kRows * kColumns];
      InDouble parts[kThreads];
    };
    Result merged[kParts * kColumns];
    bool is_last;
  };
  struct Thread {};

  static constexpr int kGroup = 3;
  static constexpr int kTile = kGroup + 3;
  static constexpr int kChannels = kTile + 3;
  static constexpr int kSteps = kChannels + 2;
  static constexpr int kResident = kResidentBlocks<R, Gate::kIsActivated>;

  GLUON_SYNCBN_HOST_DEVICE bool step(int step, std::uint32_t block, std::uint32_t thread, Thread*,
                                     Shared* shared) const {
    if (step == 0) {
      sum(matrix.template task<kVector>(block, thread), thread, shared);
      return true;
    }
    if (step == 1) {
      if (thread < kColumns * kParts) merge_rows(thread, shared);
      return true;
    }
    if (step == 2) {
      if (thread < kColumns) leave(block, thread, *shared);
      return matrix.chunks > 1 || !matrix.is_plain();
    }
    // A block knows from the counter's step whether it is the last one.
    const bool merges_chunks = step < kTile && matrix.chunks > 1;
    const bool merges_groups = step >= kTile && step < kChannels && matrix.groups > 1;
    if (!merges_chunks && !merges_groups && step < kChannels) return true;
    if (step != kGroup && step != kTile && step != kChannels && !shared->is_last) return false;
    const std::uint32_t chunk = matrix.tiles.quotient(block);
    const std::uint32_t tile = block - chunk * matrix.tiles.divisor;
    if (merges_chunks) {
      const std::uint32_t group = matrix.group_chunks.quotient(chunk);
      const std::uint32_t begin = group * matrix.group_chunks.divisor;
      Merge chunks = merge_chunks;
      if (matrix.chunks - begin < chunks.number) chunks.number = matrix.chunks - begin;
      merge<Result>(
          step - kGroup, tile, thread, chunks, &of_chunks[begin * std::int64_t{matrix.columns}],
          &counters[group * matrix.tiles.divisor + tile],
          matrix.groups > 1 ? &of_groups[group * std::int64_t{matrix.columns}] : nullptr, shared);
      return true;
    }
    if (merges_groups) {
      merge<InDouble>(step - kTile, tile, thread, merge_groups, of_groups,
                      &counters[matrix.groups * matrix.tiles.divisor + tile], nullptr, shared);
      return true;
    }
    if (matrix.is_plain()) return false;
    if (step == kChannels) {
      if (thread == 0) {
        shared->is_last = is_last_block(&counters[(matrix.groups + 1) * matrix.tiles.divisor],
                                        matrix.tiles.divisor);
      }
      return true;
    }
    for (std::uint32_t channel = thread; channel < matrix.channels; channel += kThreads) {
      const auto all = merge_range<InDouble, InDouble>(
          0, matrix.channel_columns(),
          [&](std::uint32_t i) { return load_cg(&of_columns[matrix.channel_column(i, channel)]); });
      message.put(channel, Accumulator<R>::finish(all, statistic_of(channel)));
    }
    return true;
  }

 private:
  GLUON_SYNCBN_HOST_DEVICE double statistic_of(std::uint32_t channel) const {
    return Accumulator<R>::kNeedsStatistic ? statistic[channel] : 0;
  }
  /// The places of a row have the first column of every lane, then the second column of every lane,
  /// and so on. Neighbouring threads then use neighbouring memory.
  GLUON_SYNCBN_HOST_DEVICE static std::uint32_t column_of_place(std::uint32_t place) {
    return place % kLanes * kVector + place / kLanes;
  }

  GLUON_SYNCBN_HOST_DEVICE void sum(const ChannelLast::Task& task, std::uint32_t thread,
                                    Shared* shared) const {
    Sum sum;
    sum.inputs = inputs;
    sum.gate = &gate;
    sum.clear();
    if (task.exists) {
      if constexpr (Accumulator<R>::kNeedsStatistic)
        set_channels(task.column, sum.center, sum.channels);
      auto walk = Walk<ChannelLast, kVector>::of(matrix, task);
      visit(matrix, &walk, &sum);
      visit_rest(matrix, task, &sum);
    }
    Result* row = &shared->of_threads[thread / kLanes * kColumns + thread % kLanes];
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kVector; ++i) row[i * static_cast<int>(kLanes)] = sum.result(i);
  }

  GLUON_SYNCBN_HOST_DEVICE void set_channels(std::uint32_t column, R* center,
                                             typename Gate::Channel* channels) const {
    const bool plain = matrix.is_plain();
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kVector; ++i) {
      if (plain) channels[i] = gate.at(statistic, column + i, &center[i]);
    }
    if (plain) return;
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kVector; ++i) {
      const std::uint32_t channel = matrix.channel(column + static_cast<std::uint32_t>(i));
      channels[i] = gate.at(statistic, channel, &center[i]);
    }
  }

  /// Merges consecutive rows of a column.
  GLUON_SYNCBN_HOST_DEVICE void merge_rows(std::uint32_t thread, Shared* shared) const {
    const std::uint32_t part = thread / kColumns;
    const Result* from = &shared->of_threads[part * kAtOnce * kColumns + thread % kColumns];
    Result results[kAtOnce];
    GLUON_SYNCBN_UNROLL
    for (std::uint32_t i = 0; i < kAtOnce; ++i) results[i] = from[i * kColumns];
    shared->merged[thread] = Result::template merged<kAtOnce>(results);
  }

  /// Leaves the block's result of a column.
  GLUON_SYNCBN_HOST_DEVICE void leave(std::uint32_t block, std::uint32_t place,
                                      const Shared& shared) const {
    const std::uint32_t chunk = matrix.tiles.quotient(block);
    const std::uint32_t tile = block - chunk * matrix.tiles.divisor;
    const std::uint32_t column = tile * kColumns + column_of_place(place);
    if (column >= matrix.columns) return;
    Result results[kParts];
    GLUON_SYNCBN_UNROLL
    for (std::uint32_t i = 0; i < kParts; ++i) results[i] = shared.merged[i * kColumns + place];
    const Result all = Result::template merged<kParts>(results);
    if (matrix.chunks > 1) {
      of_chunks[chunk * std::int64_t{matrix.columns} + column] = all;
    } else {
      put_column(column, all);
    }
  }

  template <class From>
  GLUON_SYNCBN_HOST_DEVICE void put_column(std::uint32_t column, const From& sums) const {
    if (matrix.is_plain()) {
      message.put(column, Accumulator<R>::finish(sums, statistic_of(column)));
    } else {
      InDouble in_double{};
      in_double.add(sums);
      of_columns[column] = in_double;
    }
  }

  /// Merges the results that blocks have left of the columns of a tile. `to` is null if these are
  /// the results of all chunks.
  template <class From>
  GLUON_SYNCBN_HOST_DEVICE void merge(int step, std::uint32_t tile, std::uint32_t thread,
                                      const Merge& merge, const From* from, std::uint32_t* counter,
                                      InDouble* to, Shared* shared) const {
    if (step == 0) {
      if (thread == 0) shared->is_last = is_last_block(counter, merge.number);
      return;
    }
    const std::uint32_t column = tile * kColumns + thread % kColumns;
    if (step == 1) {
      const std::uint32_t part = thread / kColumns;
      if (part < merge.parts && column < matrix.columns) {
        // The last group may have no result for this part.
        const std::uint32_t begin = part * merge.share;
        const std::uint32_t end =
            begin + merge.share < merge.number ? begin + merge.share : merge.number;
        const From* of_column = &from[column];
        const std::int64_t distance = matrix.columns;
        shared->parts[thread] = merge_range<InDouble, From>(
            begin, end, [=](std::uint32_t i) { return load_cg(&of_column[i * distance]); });
      }
      return;
    }
    if (thread < kColumns && column < matrix.columns) {
      const InDouble* parts = &shared->parts[thread];
      const auto all = merge_range<InDouble, InDouble>(
          0, merge.parts, [parts](std::uint32_t i) { return parts[i * kColumns]; });
      if (to) {
        to[column] = all;
      } else {
        put_column(column, all);
      }
    }
  }
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_KERNELS_REDUCE_H_

#pragma once

#include <cstdint>

#include "cuda/kernels/accumulators.h"
#include "cuda/kernels/body.h"
#include "cuda/kernels/tiling.h"
#include "cuda/kernels/visit.h"

namespace gluon_syncbn::cuda {

/// Sums every channel as `Accumulator` defines. If a channel has several columns or blocks, each
/// leaves a partial result for MergeBlocks.
template <class Tiling, class T, class Accumulator>
struct Reduce {
  static constexpr const char* kName = Accumulator::kName;
  using R = Real<T>;
  using Result = typename Accumulator::Result;
  using Gate = typename Accumulator::Gate;
  static constexpr int kInputs = Accumulator::kInputs;
  static constexpr int kVector = kWidest<T>;
  /// The number of columns that a thread sums.
  static constexpr int kColumns = Tiling::template kChannels<kVector>;

  Tiling tiling;
  const T* inputs[kInputs];
  Gate gate;
  std::uint32_t columns;  // in a chunk
  Result* results;        // at chunk * columns + column; null: they go to the message
  Message message;

  // A thread merges this many results at once, so that their loads overlap.
  static constexpr std::uint32_t kAtOnce = 8;
  static constexpr std::uint32_t kMerged = kThreads * kColumns / kAtOnce;
  static_assert(kThreads % (kAtOnce * ChannelLast::kLanes) == 0);  // Groups of rows are whole.
  struct Shared {
    // Row by row; tiling.h orders the places of a row. The next step leaves its results here, too.
    Result results[kThreads * kColumns];
  };

  static constexpr int kBlockThreads = kThreads;
  static constexpr int kSteps = 3;
  static constexpr int kResident = kResidentBlocks<R, Gate::kIsActivated>;

  void step(int step, std::uint32_t block, std::uint32_t thread, Shared* shared) const {
    const std::uint32_t width = tiling.template tile_columns<kVector>();
    if (step == 0) {
      Result* row = &shared->results[tiling.row(thread) * width];
      sum(block, thread, row);
    } else if (step == 1) {
      // Each thread merges kAtOnce rows of one column, because kMerged is a multiple of the width.
      // The rows are kMerged results apart, so neighbouring threads read neighbouring memory, and
      // no other thread reads the place that a thread writes.
      if (thread < kMerged) {
        shared->results[thread] = merge_some(&shared->results[thread], kMerged, kAtOnce);
      }
    } else if (thread < width) {
      const std::uint32_t rows = tiling.rows_at_once() / kAtOnce;
      leave(block, thread, merge_rows(&shared->results[thread], width, rows));
    }
  }

 private:
  void sum(std::uint32_t block, std::uint32_t thread, Result* row) const {
    Summation<T, Accumulator, kColumns> sum;
    sum.inputs = inputs;
    sum.gate = &gate;
    sum.has_halves = tiling.template has_halves<T>();
    sum.clear();
    const auto task = tiling.template task<kVector>(block, thread);
    if (task.exists) {
      if constexpr (Accumulator::kHasCenters) {
        GLUON_SYNCBN_UNROLL
        for (int i = 0; i < kColumns; ++i) {
          const std::uint32_t channel = tiling.channel(task, static_cast<std::uint32_t>(i));
          sum.channels[i] = gate.at(channel);
        }
      }
      auto walk = Walk<Tiling, kVector>::of(tiling, task);
      visit(tiling, &walk, &sum);
    }
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kColumns; ++i) {
      row[tiling.place(thread, static_cast<std::uint32_t>(i))] = sum.result(i);
    }
  }

  /// Merges `number` results, or kAtOnce if there are more. They lie `distance` results apart.
  static Result merge_some(const Result* from, std::uint32_t distance, std::uint32_t number) {
    Result results[kAtOnce];
    GLUON_SYNCBN_UNROLL
    for (std::uint32_t i = 0; i < kAtOnce; ++i) {
      results[i] = {};
      if (i < number) results[i] = from[i * distance];
    }
    return Result::template merged<kAtOnce>(results);
  }
  /// Merges `rows` results, which lie `distance` results apart.
  static Result merge_rows(const Result* from, std::uint32_t distance, std::uint32_t rows) {
    Result all = merge_some(from, distance, rows);
    GLUON_SYNCBN_UNROLL
    for (std::uint32_t row = kAtOnce; row < kThreads / kAtOnce; row += kAtOnce) {
      if (row >= rows) break;  // The loop's own limit is constant, so that it can be unrolled.
      const Result both[] = {all, merge_some(&from[row * distance], distance, rows - row)};
      all = Result::template merged<2>(both);
    }
    return all;
  }

  /// Writes the result of a column to `results`, or to the message if `results` is null.
  void leave(std::uint32_t block, std::uint32_t place, const Result& all) const {
    const std::uint32_t column = tiling.template column<kVector>(block, place);
    if (column >= columns) return;
    if (results) {
      results[tiling.chunk(block) * std::int64_t{columns} + column] = all;
    } else {
      message.put(column, Accumulator::finish(all, gate.parameters, column));
    }
  }
};

}  // namespace gluon_syncbn::cuda

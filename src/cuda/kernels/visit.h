#pragma once

#include <cstdint>

#include "cuda/kernels/body.h"
#include "cuda/kernels/tiling.h"

// A walk finds the accesses of a thread, one after the other. It has
//
//   has(tiling, number)        whether at least `number` accesses are left
//   next(tiling)               the elements of the next access that belong to the channel
//   are_full(tiling)           whether all accesses are full; next_full(tiling) then returns
//                              where the next access begins
//
// visit() gives the accesses to a visitor, which has
//
//   kVector, kTogether         elements of an access; number of accesses whose loads overlap
//   full<N>(at)                visits N full accesses that begin at at[0], ..., at[N - 1]
//   one(at, i)                 visits element `at`, the i-th of its access; with one channel i is 0

namespace gluon_syncbn::cuda {

/// The elements of an access that belong to the channel: kVector if the access is full.
struct Piece {
  std::int64_t begin;
  std::int64_t end;
};

template <class Tiling, int kVector>
struct Walk;

template <int kVector>
struct Walk<ChannelFirst, kVector> {
  std::int64_t run_begin;
  std::uint32_t unit;       // index of the next unit in its run
  std::uint32_t next_unit;  // index of the next unit in its channel
  std::uint32_t end;        // of the chunk, in units of the channel

  GLUON_SYNCBN_HOST_DEVICE static Walk of(const ChannelFirst& runs,
                                          const ChannelFirst::Task& task) {
    const std::uint32_t run = runs.run_units.quotient(task.first);
    return {run * runs.run_distance + task.channel * runs.inner,
            task.first - run * runs.run_units.divisor, task.first, task.end};
  }
  GLUON_SYNCBN_HOST_DEVICE static bool are_full(const ChannelFirst& runs) { return runs.is_even; }
  GLUON_SYNCBN_HOST_DEVICE bool has(const ChannelFirst& runs, std::uint32_t number) const {
    return next_unit + (number - 1) * runs.lanes < end;
  }

  /// Needs are_full().
  GLUON_SYNCBN_HOST_DEVICE std::int64_t next_full(const ChannelFirst& runs) {
    const std::int64_t begin = run_begin + std::int64_t{unit} * kVector;
    advance(runs);
    return begin;
  }
  GLUON_SYNCBN_HOST_DEVICE Piece next(const ChannelFirst& runs) {
    // The first unit of the run begins `over` elements before the run.
    const auto over = static_cast<std::uint32_t>(run_begin + runs.phase) % kVector;
    const std::int64_t begin = run_begin + std::int64_t{unit} * kVector - over;
    const std::int64_t run_end = run_begin + runs.inner;
    const Piece piece{unit == 0 ? run_begin : begin,
                      begin + kVector < run_end ? begin + kVector : run_end};
    advance(runs);
    return piece;
  }

 private:
  GLUON_SYNCBN_HOST_DEVICE void advance(const ChannelFirst& runs) {
    next_unit += runs.lanes;
    unit += runs.lane_units;
    run_begin += runs.lane_distance;
    if (unit >= runs.run_units.divisor) {
      unit -= runs.run_units.divisor;
      run_begin += runs.run_distance;
    }
  }
};

template <int kVector>
struct Walk<ChannelLast, kVector> {
  static constexpr std::uint32_t kRows = ChannelLast::rows_at_once<kVector>();

  std::int64_t at;  // where the next access begins
  std::uint32_t row;
  std::uint32_t end;  // of the full rows of the chunk

  GLUON_SYNCBN_HOST_DEVICE static Walk of(const ChannelLast& matrix,
                                          const ChannelLast::Task& task) {
    return {task.row * std::int64_t{matrix.columns} + task.column, task.row, task.end};
  }
  GLUON_SYNCBN_HOST_DEVICE static bool are_full(const ChannelLast&) { return true; }
  GLUON_SYNCBN_HOST_DEVICE bool has(const ChannelLast&, std::uint32_t number) const {
    return row + (number - 1) * kRows < end;
  }

  GLUON_SYNCBN_HOST_DEVICE std::int64_t next_full(const ChannelLast& matrix) {
    const std::int64_t begin = at;
    row += kRows;
    at += matrix.row_distance;
    return begin;
  }
  GLUON_SYNCBN_HOST_DEVICE Piece next(const ChannelLast& matrix) {
    const std::int64_t begin = next_full(matrix);
    return {begin, begin + kVector};
  }
};

template <int kNumber, class Tiling, class Visitor>
GLUON_SYNCBN_HOST_DEVICE void visit_full(const Tiling& tiling, Walk<Tiling, Visitor::kVector>* walk,
                                         Visitor* visitor) {
  std::int64_t begin[kNumber];
  GLUON_SYNCBN_UNROLL
  for (int i = 0; i < kNumber; ++i) begin[i] = walk->next_full(tiling);
  visitor->template full<kNumber>(begin);
}

/// Visits the next accesses. The elements of an access that is not full are visited one by one.
template <int kNumber, class Tiling, class Visitor>
GLUON_SYNCBN_HOST_DEVICE void visit_pieces(const Tiling& tiling,
                                           Walk<Tiling, Visitor::kVector>* walk, Visitor* visitor) {
  Piece pieces[kNumber];
  std::int64_t begin[kNumber];
  bool all_full = true;
  GLUON_SYNCBN_UNROLL
  for (int i = 0; i < kNumber; ++i) {
    pieces[i] = walk->next(tiling);
    begin[i] = pieces[i].begin;
    all_full = all_full && pieces[i].end - pieces[i].begin == Visitor::kVector;
  }
  if (all_full) {
    visitor->template full<kNumber>(begin);
    return;
  }
  GLUON_SYNCBN_UNROLL
  for (int i = 0; i < kNumber; ++i) {
    if (pieces[i].end - pieces[i].begin == Visitor::kVector) {
      visitor->template full<1>(&begin[i]);
    } else {
      for (std::int64_t at = pieces[i].begin; at < pieces[i].end; ++at) visitor->one(at, 0);
    }
  }
}

/// Visits kTogether accesses at a time, then two, then one, so that loads overlap.
template <class Tiling, class Visitor>
GLUON_SYNCBN_HOST_DEVICE void visit(const Tiling& tiling, Walk<Tiling, Visitor::kVector>* walk,
                                    Visitor* visitor) {
  constexpr int kTogether = Visitor::kTogether;
  static_assert(kTogether == 2 || kTogether == 4);
  if (Walk<Tiling, Visitor::kVector>::are_full(tiling)) {
    GLUON_SYNCBN_NO_UNROLL
    while (walk->has(tiling, kTogether)) visit_full<kTogether>(tiling, walk, visitor);
    if (kTogether > 2 && walk->has(tiling, 2)) visit_full<2>(tiling, walk, visitor);
    if (walk->has(tiling, 1)) visit_full<1>(tiling, walk, visitor);
  } else {
    GLUON_SYNCBN_NO_UNROLL
    while (walk->has(tiling, kTogether)) visit_pieces<kTogether>(tiling, walk, visitor);
    if (kTogether > 2 && walk->has(tiling, 2)) visit_pieces<2>(tiling, walk, visitor);
    if (walk->has(tiling, 1)) visit_pieces<1>(tiling, walk, visitor);
  }
}

/// Visits the elements of the last row if it is filled in part and the thread takes it.
template <class Visitor>
GLUON_SYNCBN_HOST_DEVICE void visit_rest(const ChannelLast& matrix, const ChannelLast::Task& task,
                                         Visitor* visitor) {
  if (!task.has_last) return;
  const std::int64_t begin = matrix.full_rows * std::int64_t{matrix.columns} + task.column;
  for (int i = 0; i < Visitor::kVector && begin + i < matrix.total; ++i) {
    visitor->one(begin + i, i);
  }
}
template <class Visitor>
GLUON_SYNCBN_HOST_DEVICE void visit_rest(const ChannelFirst&, const ChannelFirst::Task&, Visitor*) {
}

}  // namespace gluon_syncbn::cuda

#pragma once

#include <cstdint>

#include "cuda/kernels/body.h"
#include "cuda/kernels/tiling.h"

// A walk finds the accesses of a thread, one after the other. It has
//
//   has_next()                 whether an access is left
//   next(tiling)               the elements of the next access that belong to the channel; none
//                              after the last access
//   has_full(tiling, number)   whether so many accesses are left that are full for certain;
//                              next_full(tiling) returns where the next one of them begins
//
// visit() gives the accesses to a visitor, which has
//
//   kVector, kTogether         elements of an access; number of accesses whose loads overlap
//   add(pieces)                adds the elements of several accesses

namespace gluon_syncbn::cuda {

/// The elements of an access that belong to the channel.
struct Piece {
  std::int64_t begin;
  std::uint32_t size;  // kVector if the access is full

  bool has(int i) const { return static_cast<std::uint32_t>(i) < size; }
};

/// `left`, but at least 0 and at most kMost.
template <int kMost>
std::uint32_t at_most(std::int64_t left) {
  return left < 0 ? 0 : left < kMost ? static_cast<std::uint32_t>(left) : kMost;
}

template <class Tiling, int kVector>
struct Walk;

template <int kVector>
struct Walk<ChannelFirst, kVector> {
  std::int64_t run_begin;
  std::uint32_t unit;       // index of the next unit in its run
  std::uint32_t next_unit;  // index of the next unit in its channel
  std::uint32_t end;        // of the chunk, in units of the channel

  static Walk of(const ChannelFirst& runs, const ChannelFirst::Task& task) {
    const std::uint32_t run = runs.run_units.quotient(task.first);
    return {run * runs.run_distance + task.channel * runs.inner,
            task.first - run * runs.run_units.divisor, task.first, task.end};
  }
  bool has_next() const { return next_unit < end; }
  bool has_full(const ChannelFirst& runs, std::uint32_t number) const {
    return runs.is_even && next_unit + (number - 1) * runs.lanes < end;
  }
  std::int64_t next_full(const ChannelFirst& runs) {
    const std::int64_t begin = run_begin + std::int64_t{unit} * kVector;
    advance(runs);
    return begin;
  }
  Piece next(const ChannelFirst& runs) {
    if (!has_next()) return {0, 0};
    Piece piece{run_begin + std::int64_t{unit} * kVector, kVector};
    if (!runs.is_even) {
      // The first unit of the run begins `over` elements before the run. The last unit may be
      // empty.
      const auto over = static_cast<std::uint32_t>(run_begin + runs.phase) % kVector;
      const std::uint32_t before = unit == 0 ? over : 0;
      const std::int64_t left = runs.inner + over - std::int64_t{unit} * kVector;
      piece.begin += before - std::int64_t{over};
      piece.size = at_most<kVector>(left) - before;
    }
    advance(runs);
    return piece;
  }

 private:
  void advance(const ChannelFirst& runs) {
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
  static constexpr std::uint32_t kRows = ChannelLast::rows_at_once();

  std::int64_t at;  // where the next access begins
  std::uint32_t row;
  std::uint32_t end;

  static Walk of(const ChannelLast& matrix, const ChannelLast::Task& task) {
    return {task.row * std::int64_t{matrix.columns} + task.column, task.row, task.end};
  }
  bool has_next() const { return row < end; }
  bool has_full(const ChannelLast& matrix, std::uint32_t number) const {
    const std::uint32_t last = row + (number - 1) * kRows;
    return last < end && last < matrix.full_rows;
  }
  std::int64_t next_full(const ChannelLast& matrix) {
    const std::int64_t begin = at;
    row += kRows;
    at += matrix.row_distance;
    return begin;
  }
  Piece next(const ChannelLast& matrix) {
    if (!has_next()) return {0, 0};
    const std::int64_t begin = next_full(matrix);
    return {begin, at_most<kVector>(matrix.total - begin)};
  }
};

/// Visits kTogether full accesses at a time, and the other ones two at a time, so that loads
/// overlap.
template <class Tiling, class Visitor>
void visit(const Tiling& tiling, Walk<Tiling, Visitor::kVector>* walk, Visitor* visitor) {
  constexpr int kTogether = Visitor::kTogether;
  GLUON_SYNCBN_NO_UNROLL
  while (walk->has_full(tiling, kTogether)) {
    Piece pieces[kTogether];
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kTogether; ++i) pieces[i] = {walk->next_full(tiling), Visitor::kVector};
    visitor->add(pieces);
  }
  GLUON_SYNCBN_NO_UNROLL
  while (walk->has_next()) {
    const Piece pieces[] = {walk->next(tiling), walk->next(tiling)};
    visitor->add(pieces);
  }
}

}  // namespace gluon_syncbn::cuda

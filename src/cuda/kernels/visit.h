#ifndef GLUON_SYNCBN_CUDA_KERNELS_VISIT_H_
#define GLUON_SYNCBN_CUDA_KERNELS_VISIT_H_

#include <cstdint>

#include "cuda/kernels/body.h"
#include "cuda/kernels/tiling.h"

// Gives the elements of one thread to a visitor, which has
//
//   kVector, kTogether         elements of an access, and accesses that it likes to have at once
//   full<N>(at)                N full accesses that begin at at[0], ..., at[N - 1]
//   one(at, i)                 one element, the i-th of its access where its column matters

namespace gluon_syncbn::cuda {

/// The next units where every unit is full.
template <int kNumber, class Visitor>
GLUON_SYNCBN_HOST_DEVICE void visit_even(ChannelFirst::Cursor<Visitor::kVector>* cursor,
                                         Visitor* visitor) {
  std::int64_t begin[kNumber];
  GLUON_SYNCBN_UNROLL
  for (int i = 0; i < kNumber; ++i) {
    begin[i] = cursor->even_begin();
    cursor->advance();
  }
  visitor->template full<kNumber>(begin);
}

/// The next units, where those that are not full are visited one by one.
template <int kNumber, class Visitor>
GLUON_SYNCBN_HOST_DEVICE void visit_uneven(ChannelFirst::Cursor<Visitor::kVector>* cursor,
                                           Visitor* visitor) {
  std::int64_t begin[kNumber];
  std::int64_t end[kNumber];
  bool all_full = true;
  GLUON_SYNCBN_UNROLL
  for (int i = 0; i < kNumber; ++i) {
    const ChannelFirst::Piece piece = cursor->piece();
    begin[i] = piece.begin;
    end[i] = piece.end;
    all_full = all_full && piece.end - piece.begin == Visitor::kVector;
    cursor->advance();
  }
  if (all_full) {
    visitor->template full<kNumber>(begin);
    return;
  }
  GLUON_SYNCBN_UNROLL
  for (int i = 0; i < kNumber; ++i) {
    if (end[i] - begin[i] == Visitor::kVector) {
      visitor->template full<1>(&begin[i]);
    } else {
      for (std::int64_t at = begin[i]; at < end[i]; ++at) visitor->one(at, 0);
    }
  }
}

/// Several units at a time, so that as many loads are under way.
template <class Visitor>
GLUON_SYNCBN_HOST_DEVICE void visit(const ChannelFirst& runs, const ChannelFirst::Task& task,
                                    Visitor* visitor) {
  constexpr int kTogether = Visitor::kTogether;
  if (task.size == 0) return;
  ChannelFirst::Cursor<Visitor::kVector> cursor(runs, task.channel, task.first);
  std::int64_t left = task.size;
  if (runs.is_even()) {
    for (; left >= kTogether; left -= kTogether) visit_even<kTogether>(&cursor, visitor);
    for (; left > 0; --left) visit_even<1>(&cursor, visitor);
  } else {
    for (; left >= kTogether; left -= kTogether) visit_uneven<kTogether>(&cursor, visitor);
    for (; left > 0; --left) visit_uneven<1>(&cursor, visitor);
  }
}

/// Full rows several at a time, and those elements that a last row has one by one.
template <class Visitor>
GLUON_SYNCBN_HOST_DEVICE void visit(const ChannelLast& matrix, const ChannelLast::Task& task,
                                    Visitor* visitor) {
  constexpr int kTogether = Visitor::kTogether;
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
  for (int i = 0; i < Visitor::kVector && at[0] + i < matrix.total; ++i) {
    visitor->one(at[0] + i, i);
  }
}

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_KERNELS_VISIT_H_

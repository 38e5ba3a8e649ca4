#ifndef GLUON_SYNCBN_CORE_CUDA_VISIT_H_
#define GLUON_SYNCBN_CORE_CUDA_VISIT_H_

#include <cstdint>

#include "core/cuda/body.h"
#include "core/cuda/partition.h"

// Gives the elements of one thread to a visitor, which has
//
//   kVector, kTogether         elements of an access, and accesses that it likes to have at once
//   full<N>(at)                N full accesses that begin at at[0], ..., at[N - 1]
//   one(at, i)                 one element, the i-th of its access where its column matters

namespace gluon_syncbn::cuda {

/// Full units several at a time, so that as many loads are under way, and the elements of the
/// others one by one.
template <class Visitor>
GLUON_SYNCBN_HOST_DEVICE void visit(const Runs& runs, const Runs::Task& task, Visitor* visitor) {
  constexpr int kTogether = Visitor::kTogether;
  if (task.size == 0) return;
  Runs::Cursor<Visitor::kVector> cursor(runs, task.channel, task.first);
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
    if (piece.end - piece.begin == Visitor::kVector) {
      visitor->template full<1>(&piece.begin);
    } else {
      for (std::int64_t at = piece.begin; at < piece.end; ++at) visitor->one(at, 0);
    }
    cursor.advance();
  }
}

/// Full rows several at a time, and those elements that a last row has one by one.
template <class Visitor>
GLUON_SYNCBN_HOST_DEVICE void visit(const Columns& matrix, const Columns::Task& task,
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

#endif  // GLUON_SYNCBN_CORE_CUDA_VISIT_H_

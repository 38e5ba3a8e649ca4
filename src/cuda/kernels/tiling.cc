#include "cuda/kernels/tiling.h"

#include <algorithm>
#include <numeric>

namespace gluon_syncbn::cuda {
namespace {

// A GPU has room for one to two thousand blocks; a block should have enough to do.
constexpr std::int64_t kBlocks = 2048;
constexpr std::int64_t kLeastChunk = 2048;
constexpr std::int64_t kGreatestChunk = 32768;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t b) { return divide_up(a, b) * b; }

/// Elements that a block should take of an array of `total`.
std::int64_t chunk_of(std::int64_t total) {
  return std::clamp(divide_up(total, kBlocks), kLeastChunk, kGreatestChunk);
}

}  // namespace

ChannelFirst ChannelFirst::of(const Layout& layout, int vector, int phase) {
  ChannelFirst runs{};
  runs.outer = layout.outer;
  runs.channels = layout.channels;
  runs.inner = layout.inner;
  runs.vector = vector;
  runs.phase = phase;
  runs.run_units =
      runs.is_even() ? layout.inner / vector : (layout.inner + 2 * (vector - 1)) / vector;
  const std::int64_t units = runs.outer * runs.run_units;
  // At least two units for each thread, where a block has other channels to take.
  constexpr int kLeastLanes = 8;
  runs.lanes = kLeastLanes;
  while (runs.lanes < kThreads && runs.lanes * 4 <= units) runs.lanes *= 2;
  runs.lane_runs = runs.lanes / runs.run_units;
  runs.lane_units = runs.lanes % runs.run_units;
  const std::int64_t wanted =
      divide_up(chunk_of(layout.channels * layout.count()), static_cast<std::int64_t>(vector));
  const std::int64_t chunks = divide_up(units, wanted);
  runs.chunk_units = round_up(divide_up(units, chunks), runs.lanes);
  runs.chunks = divide_up(units, runs.chunk_units);
  return runs;
}

ChannelLast ChannelLast::of(const Layout& layout, int vector) {
  ChannelLast matrix{};
  matrix.total = layout.channels * layout.count();
  matrix.width = layout.channels * layout.inner;
  matrix.channels = layout.channels;
  matrix.inner = layout.inner;
  matrix.vector = vector;

  constexpr int kLeastLanes = 8;
  constexpr int kMostLanes = 32;
  const std::int64_t aligned = vector / std::gcd(matrix.width, static_cast<std::int64_t>(vector));
  const std::int64_t wanted = kMostLanes * vector;
  matrix.fold = aligned * divide_up(wanted, matrix.width * aligned);
  matrix.columns = matrix.width * matrix.fold;
  matrix.rows = divide_up(matrix.total, matrix.columns);

  // The widest tiles that leave no more than an eighth of the threads idle.
  const std::int64_t units = matrix.columns / vector;
  matrix.lanes = kMostLanes;
  while (matrix.lanes > kLeastLanes && round_up(units, matrix.lanes) * 8 > units * 9) {
    matrix.lanes /= 2;
  }
  matrix.tiles = divide_up(units, matrix.lanes);

  const std::int64_t rows_at_once = kThreads / matrix.lanes;
  const std::int64_t wanted_rows =
      std::max(rows_at_once, chunk_of(matrix.total) / (matrix.lanes * vector));
  const std::int64_t chunks = divide_up(matrix.rows, wanted_rows);
  matrix.chunk_rows = divide_up(matrix.rows, chunks);
  matrix.chunks = divide_up(matrix.rows, matrix.chunk_rows);
  constexpr std::int64_t kLeastGroup = 32;
  matrix.group_chunks = kLeastGroup;
  while (matrix.group_chunks * matrix.group_chunks < matrix.chunks) matrix.group_chunks *= 2;
  matrix.groups = divide_up(matrix.chunks, matrix.group_chunks);
  return matrix;
}

}  // namespace gluon_syncbn::cuda

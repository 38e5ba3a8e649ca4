#include "cuda/kernels/tiling.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "common/error.h"
#include "common/layout.h"

namespace gluon_syncbn::cuda {
namespace {

std::int64_t round_up(std::int64_t a, std::int64_t b) { return divide_up(a, b) * b; }

/// The number of accesses of `vector` elements for each block, in an array of `total` elements. A
/// channel, or a tile of columns, has `together` accesses. If these are few, one block sums them.
std::int64_t chunk_of(std::int64_t total, int vector, bool for_sums, std::int64_t together) {
  if (for_sums && together <= kThreads * kAccessesWithoutMerge) return together;
  const std::int64_t least = std::max(kLeastAccesses * vector, kLeastElements);
  const std::int64_t chunk = std::clamp(divide_up(total, for_sums ? kSumBlocks : kOutputBlocks),
                                        kThreads * least, kThreads * kMostElements);
  return divide_up(chunk, vector);
}

std::uint32_t index(std::int64_t value, const Layout& layout) {
  if (value < std::int64_t{1} << 31) return static_cast<std::uint32_t>(value);
  throw Error("an array of " + std::to_string(layout.outer) + " x " +
              std::to_string(layout.channels) + " x " + std::to_string(layout.inner) +
              " elements (before the channel axis, along it, after it) is too large for the GPU "
              "kernels: expected less than 2^31 accesses for each channel");
}

}  // namespace

ChannelFirst ChannelFirst::of(const Layout& layout, int vector, int phase, bool for_sums) {
  ChannelFirst runs{};
  runs.inner = layout.inner;
  runs.run_distance = layout.channels * layout.inner;
  runs.channels = index(layout.channels, layout);
  runs.phase = static_cast<std::uint32_t>(phase);
  runs.is_even = phase == 0 && layout.inner % vector == 0;
  runs.is_halved = phase * 2 % vector == 0 && layout.inner * 2 % vector == 0;
  const std::int64_t run_units =
      runs.is_even ? layout.inner / vector : (layout.inner + 2 * (vector - 1)) / vector;
  const std::int64_t units = layout.outer * run_units;
  runs.units = index(units, layout);
  runs.run_units = FastDivisor::of(index(run_units, layout));
  // At least two units for each thread, if a block can take other channels.
  runs.lanes = kLeastLanes;
  while (runs.lanes < kThreads && runs.lanes * 4 <= units) runs.lanes *= 2;
  while (1u << runs.lane_shift < runs.lanes) ++runs.lane_shift;
  runs.lane_units = runs.lanes % runs.run_units.divisor;
  runs.lane_distance = runs.lanes / runs.run_units.divisor * runs.run_distance;
  // Merging chunks takes time. So a channel has several chunks only if a block has one channel. One
  // block per channel must also make too few blocks or too large ones.
  std::int64_t wanted = chunk_of(layout.channels * layout.count(), vector, for_sums, units);
  if (for_sums && layout.channels >= kEnoughBlocks) {
    wanted = std::max(wanted, std::min(4 * wanted, kThreads * kMostElements / vector));
  }
  const std::int64_t chunks = runs.lanes == kThreads ? divide_up(units, wanted) : 1;
  constexpr std::int64_t kLineUnits = 8;
  const std::int64_t chunk_units = round_up(divide_up(units, chunks), kLineUnits);
  runs.chunk_units = index(chunk_units, layout);
  runs.chunks = FastDivisor::of(index(divide_up(units, chunk_units), layout));
  return runs;
}

ChannelLast ChannelLast::of(const Layout& layout, int vector, bool for_sums) {
  const std::int64_t lanes = kLanes;
  const std::int64_t rows_at_once = kThreads / lanes;
  const std::int64_t width = layout.channels * layout.inner;

  ChannelLast matrix{};
  matrix.total = layout.channels * layout.count();
  matrix.channels = index(layout.channels, layout);
  matrix.width = FastDivisor::of(index(width, layout));
  matrix.inner = FastDivisor::of(index(layout.inner, layout));
  // At most a quarter of the threads stay idle.
  const std::int64_t aligned = vector / std::gcd(width, static_cast<std::int64_t>(vector));
  std::int64_t fold = aligned;
  const auto tiles = [&] { return divide_up(width * fold / vector, lanes); };
  while (tiles() * lanes * 3 > width * fold / vector * 4) fold += aligned;
  const std::int64_t columns = width * fold;
  const std::int64_t rows = divide_up(matrix.total, columns);
  matrix.fold = index(fold, layout);
  matrix.columns = index(columns, layout);
  matrix.rows = index(rows, layout);
  matrix.full_rows = index(matrix.total / columns, layout);
  matrix.row_distance = rows_at_once * columns;
  matrix.tiles = FastDivisor::of(index(tiles(), layout));

  const std::int64_t chunk = chunk_of(matrix.total, vector, for_sums, rows * lanes);
  const std::int64_t wanted = std::max(rows_at_once, divide_up(chunk, lanes));
  const std::int64_t chunk_rows = divide_up(rows, divide_up(rows, wanted));
  matrix.chunk_rows = index(chunk_rows, layout);
  matrix.chunks = index(divide_up(rows, chunk_rows), layout);
  return matrix;
}

bool ChannelLast::suits(const Layout& layout, int vector) {
  if (layout.has_runs()) return false;
  const ChannelLast matrix = of(layout, vector, true);
  return matrix.rows >= kEnoughRows || matrix.results().number == 1;
}

}  // namespace gluon_syncbn::cuda

#ifndef GLUON_SYNCBN_CUDA_KERNELS_TILING_H_
#define GLUON_SYNCBN_CUDA_KERNELS_TILING_H_

#include <cstdint>

#include "common/host_device.h"
#include "common/layout.h"
#include "cuda/kernels/fast_division.h"

namespace gluon_syncbn::cuda {

/// Threads of every block: few, so that small arrays make a block for every multiprocessor.
constexpr int kThreads = 128;

/// Below this many contiguous elements per channel an array is taken as a matrix of columns.
constexpr std::int64_t kShortInner = 16;

/// Channels that follow each other, perhaps over the last one to the first.
struct ChannelRange {
  std::uint32_t first;
  std::uint32_t size;

  GLUON_SYNCBN_HOST_DEVICE std::uint32_t at(std::uint32_t index, std::uint32_t channels) const {
    return first + index < channels ? first + index : first + index - channels;
  }
  GLUON_SYNCBN_HOST_DEVICE std::uint32_t index(std::uint32_t channel,
                                               std::uint32_t channels) const {
    return channel < first ? channel - first + channels : channel - first;
  }
};

/// Partial results that a thread merges at a time: their loads are under way together.
constexpr int kMergedAtOnce = 8;

/// The most channels that a block has to do with.
constexpr int kMostBlockChannels = 32;

inline bool has_runs(const Layout& layout) { return layout.inner >= kShortInner; }

/// How the elements of an array are given to blocks and threads. Both tilings depend on the
/// layout, the size of elements and on where the array lies within 16 bytes, never on the GPU, so
/// that every GPU adds up in the same order. What counts elements of the array has 64 bits, all
/// else 32: of() throws Error if that is not enough.
///
/// An array whose channels come in runs of `inner` neighbours. Threads take units: pieces of
/// memory of `vector` elements, aligned to their size, of which the first and the last of a run may
/// belong to it in part. All units of a channel, run after run, are cut into chunks; a block takes
/// one chunk of some channels, with `lanes` threads for each channel.
struct ChannelFirst {
  std::int64_t inner;
  std::int64_t run_distance;   // elements from a run of a channel to its next one
  std::int64_t lane_distance;  // elements from a run to that `lane_runs` later
  std::uint32_t channels;
  std::uint32_t phase;  // elements between the border of a unit and the array
  std::uint32_t lane_shift;
  std::uint32_t lanes;  // = 1 << lane_shift, at least kLeastLanes
  FastDivisor run_units;
  std::uint32_t lane_units;  // = lanes % run_units
  std::uint32_t units;       // of a channel
  std::uint32_t chunk_units;
  FastDivisor chunks;
  bool is_even;  // every unit is full

  static constexpr int kLeastLanes = 16;

  static ChannelFirst of(const Layout& layout, int vector, int phase);

  GLUON_SYNCBN_HOST_DEVICE std::uint32_t channels_at_once() const {
    return std::uint32_t{kThreads} >> lane_shift;
  }
  /// Of blocks with the same channels.
  std::int64_t groups() const {
    return (std::int64_t{channels} + channels_at_once() - 1) / channels_at_once();
  }
  std::int64_t blocks() const { return groups() * chunks.divisor; }

  /// What one lane does: the units from `first` to `end`, `lanes` apart, of those of a channel.
  struct Task {
    std::uint32_t channel;
    std::uint32_t chunk;
    std::uint32_t first;
    std::uint32_t end;
    bool exists;
  };
  template <int>
  GLUON_SYNCBN_HOST_DEVICE Task task(std::uint32_t block, std::uint32_t thread) const {
    Task task;
    const std::uint32_t group = chunks.quotient(block);
    task.chunk = block - group * chunks.divisor;
    task.channel = group * channels_at_once() + (thread >> lane_shift);
    task.exists = task.channel < channels;
    const std::uint32_t begin = task.chunk * chunk_units;
    task.first = begin + (thread & (lanes - 1));
    task.end = units - begin < chunk_units ? units : begin + chunk_units;
    if (!task.exists) task.end = 0;
    return task;
  }

  /// Those of a block.
  template <int>
  GLUON_SYNCBN_HOST_DEVICE ChannelRange channels_of(std::uint32_t block) const {
    const std::uint32_t together = channels_at_once();
    const std::uint32_t first = chunks.quotient(block) * together;
    return {first, channels - first < together ? channels - first : together};
  }
  /// Different channels among the elements of an access, and the i-th of these.
  template <int kVector>
  static constexpr int kChannels = 1;
  GLUON_SYNCBN_HOST_DEVICE std::uint32_t channel(const Task& task, std::uint32_t) const {
    return task.channel;
  }
};

/// An array whose channels have few neighbours, such as channel-last ones, as a matrix. `fold` rows
/// of the array make one row of the matrix, so that vectors and blocks are full however few
/// channels there are; the last row of the matrix may be filled in part. A block takes one chunk of
/// rows of a tile of columns. Threads of one row are kLanes neighbours.
struct ChannelLast {
  std::int64_t total;         // elements of the array
  std::int64_t row_distance;  // elements from a row of a thread to its next one
  std::uint32_t channels;
  FastDivisor width;  // elements of a row of the array
  FastDivisor inner;  // = width / channels
  std::uint32_t fold;
  std::uint32_t columns;    // = width * fold, a multiple of the vector
  std::uint32_t rows;       // of the matrix
  std::uint32_t full_rows;  // without one that is filled in part
  std::uint32_t chunk_rows;
  std::uint32_t chunks;
  FastDivisor group_chunks;  // merged together
  std::uint32_t groups;
  FastDivisor tiles;

  static ChannelLast of(const Layout& layout, int vector);

  /// Threads of a row, which read 64 bytes if they take 16 each.
  template <int kVector>
  static constexpr std::uint32_t kLanes = kVector == 1 ? 16 : 4;
  template <int kVector>
  static constexpr std::uint32_t kRowsAtOnce = kThreads / kLanes<kVector>;
  template <int kVector>
  static constexpr std::uint32_t kTileColumns = kLanes<kVector> * kVector;

  std::int64_t blocks() const { return std::int64_t{tiles.divisor} * chunks; }

  /// What one thread does: full rows from `row` to `end`, kRowsAtOnce apart, and perhaps the last
  /// one in part.
  struct Task {
    std::uint32_t chunk;
    std::uint32_t column;  // the first of its access
    std::uint32_t row;
    std::uint32_t end;
    bool has_last;  // of the rows of the matrix, which is filled in part
    bool exists;
  };
  template <int kVector>
  GLUON_SYNCBN_HOST_DEVICE Task task(std::uint32_t block, std::uint32_t thread) const {
    Task task;
    task.chunk = tiles.quotient(block);
    const std::uint32_t tile = block - task.chunk * tiles.divisor;
    task.column = (tile * kLanes<kVector> + thread % kLanes<kVector>)*kVector;
    task.exists = task.column < columns;
    const std::uint32_t begin = task.chunk * chunk_rows;
    const std::uint32_t end = rows - begin < chunk_rows ? rows : begin + chunk_rows;
    task.row = begin + thread / kLanes<kVector>;
    task.end = end < full_rows ? end : full_rows;
    // One thread of each lane has it.
    task.has_last = end > full_rows && task.exists &&
                    (full_rows - begin) % kRowsAtOnce<kVector> == thread / kLanes<kVector>;
    if (!task.exists) task.end = 0;
    return task;
  }

  /// Channels have a column each, in their order.
  GLUON_SYNCBN_HOST_DEVICE bool is_plain() const { return columns == channels; }
  GLUON_SYNCBN_HOST_DEVICE std::uint32_t channel(std::uint32_t column) const {
    return is_plain() ? column : inner.quotient(width.remainder(column));
  }

  /// As those of ChannelFirst.
  template <int kVector>
  GLUON_SYNCBN_HOST_DEVICE ChannelRange channels_of(std::uint32_t block) const {
    constexpr std::uint32_t kTile = kTileColumns<kVector>;
    static_assert(kTile <= kMostBlockChannels);
    if (kTile >= width.divisor) return {0, channels};
    const std::uint32_t first = tiles.remainder(block) * kTile;
    const std::uint32_t last = (columns - first < kTile ? columns : first + kTile) - 1;
    const std::uint32_t first_channel = channel(first);
    const std::uint32_t last_channel = channel(last);
    const bool over_the_end = width.remainder(last) < width.remainder(first);
    const std::uint32_t size = last_channel + (over_the_end ? channels : 0) + 1 - first_channel;
    return {first_channel, size < channels ? size : channels};
  }
  template <int kVector>
  static constexpr int kChannels = kVector;
  GLUON_SYNCBN_HOST_DEVICE std::uint32_t channel(const Task& task, std::uint32_t i) const {
    return channel(task.column + i);
  }

  /// Columns of a channel, and one of these.
  GLUON_SYNCBN_HOST_DEVICE std::uint32_t channel_columns() const { return fold * inner.divisor; }
  GLUON_SYNCBN_HOST_DEVICE std::uint32_t channel_column(std::uint32_t number,
                                                        std::uint32_t channel) const {
    const std::uint32_t row = inner.quotient(number);
    return row * width.divisor + channel * inner.divisor + number - row * inner.divisor;
  }
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_KERNELS_TILING_H_

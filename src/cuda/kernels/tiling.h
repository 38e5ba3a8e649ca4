#ifndef GLUON_SYNCBN_CUDA_KERNELS_TILING_H_
#define GLUON_SYNCBN_CUDA_KERNELS_TILING_H_

#include <cstdint>

#include "common/host_device.h"
#include "common/layout.h"

namespace gluon_syncbn::cuda {

/// Threads of every block.
constexpr int kThreads = 256;

/// Below this many contiguous elements per channel an array is taken as a matrix of columns.
constexpr std::int64_t kShortInner = 16;

/// Quotient of numbers that are not negative. GPUs divide 64 bits by a long routine.
GLUON_SYNCBN_HOST_DEVICE inline std::int64_t divide(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kEnd = std::int64_t{1} << 32;
  if (a < kEnd && b < kEnd) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}
GLUON_SYNCBN_HOST_DEVICE inline std::int64_t remainder(std::int64_t a, std::int64_t b) {
  return a - divide(a, b) * b;
}

/// Channels that follow each other, perhaps over the last one to the first.
struct ChannelRange {
  std::int64_t first;
  int size;

  GLUON_SYNCBN_HOST_DEVICE std::int64_t at(int index, std::int64_t channels) const {
    return first + index < channels ? first + index : first + index - channels;
  }
  GLUON_SYNCBN_HOST_DEVICE int index(std::int64_t channel, std::int64_t channels) const {
    return static_cast<int>(channel < first ? channel - first + channels : channel - first);
  }
};

inline bool has_runs(const Layout& layout) { return layout.inner >= kShortInner; }

/// How the elements of an array are given to blocks and threads. Both partitions depend on the
/// layout and on where the array lies within 16 bytes, never on the GPU, so that every GPU adds up
/// in the same order.
///
/// An array whose channels come in runs of `inner` neighbours. Threads take units: pieces of
/// memory of `vector` elements, aligned to their size, of which the first and the last of a run may
/// belong to it in part. All units of a channel, run after run, are cut into chunks; a block takes
/// one chunk of some channels, with `lanes` threads for each channel.
struct ChannelFirst {
  std::int64_t outer;
  std::int64_t channels;
  std::int64_t inner;
  std::int32_t vector;
  std::int32_t phase;  // elements between the border of a unit and the array
  std::int32_t lanes;  // a power of two
  std::int64_t run_units;
  std::int64_t lane_runs;   // = lanes / run_units
  std::int64_t lane_units;  // = lanes % run_units
  std::int64_t chunk_units;
  std::int64_t chunks;

  static ChannelFirst of(const Layout& layout, int vector, int phase);

  std::int64_t blocks() const {
    const std::int64_t together = kThreads / lanes;
    return (channels + together - 1) / together * chunks;
  }

  /// What one lane does: `size` units from `first`, `lanes` apart, of the units of a channel.
  struct Task {
    std::int64_t channel;
    std::int64_t chunk;
    std::int64_t first;
    std::int64_t size;
    int lane;
    bool exists;
  };
  GLUON_SYNCBN_HOST_DEVICE Task task(std::int64_t block, int thread) const {
    Task task;
    task.chunk = remainder(block, chunks);
    task.channel = divide(block, chunks) * (kThreads / lanes) + thread / lanes;
    task.lane = thread % lanes;
    task.exists = task.channel < channels;
    task.first = begin(task.chunk) + task.lane;
    const std::int64_t left = end(task.chunk) - task.first;
    task.size = task.exists && left > 0 ? divide(left + lanes - 1, lanes) : 0;
    return task;
  }

  /// Those of a block: at most kThreads.
  GLUON_SYNCBN_HOST_DEVICE ChannelRange channels_of(std::int64_t block) const {
    const int together = kThreads / lanes;
    const std::int64_t first = divide(block, chunks) * together;
    return {first, static_cast<int>(channels - first < together ? channels - first : together)};
  }
  /// Different channels among the elements of an access, and the i-th of these.
  template <int kVector>
  static constexpr int kChannels = 1;
  GLUON_SYNCBN_HOST_DEVICE std::int64_t channel(const Task& task, int) const {
    return task.channel;
  }

  GLUON_SYNCBN_HOST_DEVICE std::int64_t begin(std::int64_t chunk) const {
    return chunk * chunk_units;
  }
  GLUON_SYNCBN_HOST_DEVICE std::int64_t end(std::int64_t chunk) const {
    const std::int64_t all = outer * run_units;
    return (chunk + 1) * chunk_units < all ? (chunk + 1) * chunk_units : all;
  }

  /// Every unit is full.
  GLUON_SYNCBN_HOST_DEVICE bool is_even() const { return phase == 0 && inner % vector == 0; }

  /// Where a part of a run lies that is in one unit; empty where begin >= end.
  struct Piece {
    std::int64_t begin;
    std::int64_t end;
  };

  /// Walks through units that are `lanes` apart, without a division for each. kVector is `vector`.
  template <int kVector>
  class Cursor {
   public:
    GLUON_SYNCBN_HOST_DEVICE Cursor(const ChannelFirst& runs, std::int64_t channel,
                                    std::int64_t unit)
        : runs_(runs) {
      const std::int64_t run = divide(unit, runs.run_units);
      unit_ = unit - run * runs.run_units;
      run_begin_ = (run * runs.channels + channel) * runs.inner;
    }

    GLUON_SYNCBN_HOST_DEVICE Piece piece() const {
      const std::int64_t run_border = (run_begin_ + runs_.phase) / kVector * kVector - runs_.phase;
      const std::int64_t unit_begin = run_border + unit_ * kVector;
      const std::int64_t unit_end = unit_begin + kVector;
      const std::int64_t run_end = run_begin_ + runs_.inner;
      return {unit_begin > run_begin_ ? unit_begin : run_begin_,
              unit_end < run_end ? unit_end : run_end};
    }
    /// piece().begin where every unit is full.
    GLUON_SYNCBN_HOST_DEVICE std::int64_t even_begin() const {
      return run_begin_ + unit_ * kVector;
    }

    GLUON_SYNCBN_HOST_DEVICE void advance() {
      std::int64_t runs = runs_.lane_runs;
      unit_ += runs_.lane_units;
      if (unit_ >= runs_.run_units) {
        unit_ -= runs_.run_units;
        ++runs;
      }
      run_begin_ += runs * runs_.channels * runs_.inner;
    }

   private:
    const ChannelFirst& runs_;
    std::int64_t unit_;
    std::int64_t run_begin_;
  };

  /// Elements of a channel in a chunk.
  GLUON_SYNCBN_HOST_DEVICE std::int64_t count(std::int64_t chunk, std::int64_t channel) const {
    return elements_before(end(chunk), channel) - elements_before(begin(chunk), channel);
  }

 private:
  GLUON_SYNCBN_HOST_DEVICE std::int64_t elements_before(std::int64_t unit,
                                                        std::int64_t channel) const {
    const std::int64_t run = divide(unit, run_units);
    const std::int64_t run_begin = phase + (run * channels + channel) * inner;
    const std::int64_t in_run = (unit - run * run_units) * vector - run_begin % vector;
    const std::int64_t rest = in_run < 0 ? 0 : in_run;
    return run * inner + (rest < inner ? rest : inner);
  }
};

/// An array whose channels have few neighbours, such as channel-last ones, as a matrix. `fold` rows
/// of the array make one row of the matrix, so that vectors and blocks are full however few
/// channels there are; the last row of the matrix may be filled in part. A block takes one chunk of
/// rows of a tile of columns. Threads of one row are `lanes` neighbours.
struct ChannelLast {
  std::int64_t total;     // elements of the array
  std::int64_t width;     // elements of a row of the array
  std::int64_t channels;  // = width / inner
  std::int64_t inner;
  std::int64_t fold;
  std::int64_t columns;  // = width * fold, a multiple of vector
  std::int64_t rows;     // of the matrix
  std::int64_t chunk_rows;
  std::int64_t chunks;
  std::int64_t group_chunks;
  std::int64_t groups;
  std::int64_t tiles;
  std::int32_t vector;
  std::int32_t lanes;  // a power of two

  static ChannelLast of(const Layout& layout, int vector);

  std::int64_t blocks() const { return tiles * chunks; }

  struct Task {
    std::int64_t chunk;
    std::int64_t column;  // the first of `vector`
    int lane;
    int row;  // among the threads of the lane
    bool exists;
  };
  GLUON_SYNCBN_HOST_DEVICE Task task(std::int64_t block, int thread) const {
    Task task;
    task.chunk = divide(block, tiles);
    task.lane = thread % lanes;
    task.row = thread / lanes;
    task.column = (remainder(block, tiles) * lanes + task.lane) * vector;
    task.exists = task.column < columns;
    return task;
  }

  GLUON_SYNCBN_HOST_DEVICE std::int64_t begin(std::int64_t chunk) const {
    return chunk * chunk_rows;
  }
  GLUON_SYNCBN_HOST_DEVICE std::int64_t end(std::int64_t chunk) const {
    return (chunk + 1) * chunk_rows < rows ? (chunk + 1) * chunk_rows : rows;
  }
  /// The end of those rows of a chunk that are full.
  GLUON_SYNCBN_HOST_DEVICE std::int64_t full_end(std::int64_t chunk) const {
    const std::int64_t full = total / columns;
    return end(chunk) < full ? end(chunk) : full;
  }
  GLUON_SYNCBN_HOST_DEVICE std::int64_t channel(std::int64_t column) const {
    return divide(remainder(column, width), inner);
  }

  /// As those of Runs.
  GLUON_SYNCBN_HOST_DEVICE ChannelRange channels_of(std::int64_t block) const {
    const std::int64_t tile = lanes * vector;
    if (tile >= width) return {0, static_cast<int>(channels)};
    const std::int64_t first = remainder(block, tiles) * tile;
    const std::int64_t last = (first + tile < columns ? first + tile : columns) - 1;
    const bool over_the_end = remainder(last, width) < remainder(first, width);
    const std::int64_t size =
        channel(last) - channel(first) + 1 + (over_the_end ? channels : std::int64_t{0});
    return {channel(first), static_cast<int>(size < channels ? size : channels)};
  }
  template <int kVector>
  static constexpr int kChannels = kVector;
  GLUON_SYNCBN_HOST_DEVICE std::int64_t channel(const Task& task, int i) const {
    return channel(task.column + i);
  }

  /// Elements of a column in chunks that follow each other.
  GLUON_SYNCBN_HOST_DEVICE std::int64_t count(std::int64_t first_chunk, std::int64_t end_chunk,
                                              std::int64_t column) const {
    const std::int64_t last = end(end_chunk - 1) - 1;
    return last - begin(first_chunk) + (last * columns + column < total ? 1 : 0);
  }

  /// Columns of a channel, and one of these.
  GLUON_SYNCBN_HOST_DEVICE std::int64_t channel_columns() const { return fold * inner; }
  GLUON_SYNCBN_HOST_DEVICE std::int64_t channel_column(std::int64_t number,
                                                       std::int64_t channel) const {
    const std::int64_t row = divide(number, inner);
    return row * width + channel * inner + number - row * inner;
  }

  /// Chunks are merged in groups, and these in the end, so that no block has much to merge.
  GLUON_SYNCBN_HOST_DEVICE std::int64_t group_end(std::int64_t group) const {
    return (group + 1) * group_chunks < chunks ? (group + 1) * group_chunks : chunks;
  }
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_KERNELS_TILING_H_

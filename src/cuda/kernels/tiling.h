#pragma once

#include <cstdint>

#include "cuda/kernels/fast_division.h"
#include "cuda/kernels/tuning.h"

// A tiling gives the elements of an array to blocks and threads. It depends on the layout, the size
// of elements and the array's address modulo 16. It does not depend on the GPU, so every GPU sums
// in the same order. Indices and distances of elements have 64 bits. All other numbers have 32:
// of() throws Error if a number reaches 2^31.

namespace gluon_syncbn {
struct Layout;
}

namespace gluon_syncbn::cuda {

/// Says where a channel's partial results lie: a column's result lies at chunk * columns + column.
/// In each row of the array, a channel has neighbouring columns.
struct ResultPlaces {
  std::uint32_t columns;      // in a chunk
  std::uint32_t number;       // results per channel
  std::uint32_t row_columns;  // columns in a row of the array
  FastDivisor in_chunk;       // results per channel in a chunk
  FastDivisor in_row;         // results per channel in a row of the array

  /// The place of the i-th result of a channel.
  std::int64_t of(std::uint32_t channel, std::uint32_t i) const {
    const std::uint32_t chunk = in_chunk.quotient(i);
    const std::uint32_t rest = i - chunk * in_chunk.divisor;
    const std::uint32_t row = in_row.quotient(rest);
    return std::int64_t{chunk} * columns + row * row_columns + channel * in_row.divisor + rest -
           row * in_row.divisor;
  }
};

/// The tiling of an array whose channels have runs of `inner` neighbours. A unit is an aligned
/// piece of memory with `vector` elements. The first and the last unit of a run may belong to the
/// run in part. The units of a channel are counted run after run and divided into chunks. A block
/// takes one chunk of some channels, with `lanes` threads for each channel.
struct ChannelFirst {
  std::int64_t inner;
  std::int64_t run_distance;   // elements from a run to the next run of its channel
  std::int64_t lane_distance;  // elements by which a thread advances, in whole runs
  std::uint32_t channels;
  std::uint32_t phase;  // elements from the last boundary of units to the array
  std::uint32_t lane_shift;
  std::uint32_t lanes;  // = 1 << lane_shift, at least kLeastLanes
  FastDivisor run_units;
  std::uint32_t lane_units;  // units by which a thread also advances: lanes % run_units
  std::uint32_t units;       // per channel
  std::uint32_t chunk_units;
  FastDivisor chunks;
  bool is_even;    // every unit is full
  bool is_halved;  // every unit is full or half

  /// Whether every access is full or half, as those of 14 x 14 elements of float16, which are 24.5
  /// accesses. Kernels for other types do without the code for it.
  template <class T>
  bool has_halves() const {
    return sizeof(T) == 2 && is_halved;
  }

  static constexpr int kLeastLanes = 16;

  /// With `for_sums` it makes fewer chunks, because the results of a channel's chunks must merge.
  static ChannelFirst of(const Layout& layout, int vector, int phase, bool for_sums);

  std::uint32_t channels_at_once() const { return std::uint32_t{kThreads} >> lane_shift; }
  /// The number of groups of blocks with the same channels.
  std::int64_t groups() const {
    return (std::int64_t{channels} + channels_at_once() - 1) / channels_at_once();
  }
  std::int64_t blocks() const { return groups() * chunks.divisor; }

  /// The work of one thread: every `lanes`-th unit of a channel from `first` to `end`.
  struct Task {
    std::uint32_t channel;
    std::uint32_t first;
    std::uint32_t end;
    bool exists;  // whether the array has this channel
  };
  template <int kVector>
  Task task(std::uint32_t block, std::uint32_t thread) const {
    Task task;
    task.channel = column<kVector>(block, place(thread, 0));
    task.exists = task.channel < channels;
    const std::uint32_t begin = chunk(block) * chunk_units;
    task.first = begin + row(thread);
    task.end = units - begin < chunk_units ? units : begin + chunk_units;
    if (!task.exists) task.end = 0;
    return task;
  }

  /// The number of channels in an access.
  template <int kVector>
  static constexpr int kChannels = 1;
  /// The i-th channel of an access.
  std::uint32_t channel(const Task& task, std::uint32_t) const { return task.channel; }

  // The next functions arrange the threads of a block in rows. A row has a place for each column in
  // shared memory (reduce.h). column() turns a place into a column, here a channel.
  std::uint32_t rows_at_once() const { return lanes; }
  template <int>
  std::uint32_t tile_columns() const {
    return channels_at_once();
  }
  std::uint32_t row(std::uint32_t thread) const { return thread & (lanes - 1); }
  /// The place of the i-th column of a thread.
  std::uint32_t place(std::uint32_t thread, std::uint32_t) const { return thread >> lane_shift; }
  template <int>
  std::uint32_t column(std::uint32_t block, std::uint32_t place) const {
    return chunks.quotient(block) * channels_at_once() + place;
  }
  std::uint32_t chunk(std::uint32_t block) const {
    return block - chunks.quotient(block) * chunks.divisor;
  }
  ResultPlaces results() const {
    return {channels, chunks.divisor, channels, FastDivisor::of(1), FastDivisor::of(1)};
  }
};

/// The tiling of an array whose channels have short runs, such as a channel-last array. It treats
/// the array as a matrix. A row of the matrix has `fold` rows of the array. Otherwise arrays of few
/// channels would not fill vectors and blocks. The last row of the matrix may be filled in part. A
/// block takes one chunk of rows of a tile of columns, with kLanes neighbouring threads for a row.
struct ChannelLast {
  std::int64_t total;         // elements of the array
  std::int64_t row_distance;  // elements between two successive rows of a thread
  std::uint32_t channels;
  FastDivisor width;  // elements of a row of the array
  FastDivisor inner;  // = width / channels
  std::uint32_t fold;
  std::uint32_t columns;    // = width * fold, a multiple of the vector
  std::uint32_t rows;       // of the matrix
  std::uint32_t full_rows;  // rows that the array fills completely
  std::uint32_t chunk_rows;
  std::uint32_t chunks;
  FastDivisor tiles;

  static ChannelLast of(const Layout& layout, int vector, bool for_sums);
  /// Whether this tiling suits an array better than ChannelFirst. A matrix of few rows leaves most
  /// threads of a block idle. If its channels have several columns, it needs a merge as well.
  static bool suits(const Layout& layout, int vector);

  template <class>
  static constexpr bool has_halves() {
    return false;
  }
  /// The number of threads in a row. Together they read 128 bytes, a line of the GPU's cache.
  static constexpr std::uint32_t kLanes = 8;

  std::int64_t blocks() const { return std::int64_t{tiles.divisor} * chunks; }

  /// The work of one thread: every rows_at_once()-th row from `row` to `end`.
  struct Task {
    std::uint32_t column;  // the first column of the access
    std::uint32_t row;
    std::uint32_t end;
    bool exists;  // whether the matrix has this column
  };
  template <int kVector>
  Task task(std::uint32_t block, std::uint32_t thread) const {
    Task task;
    task.column = column<kVector>(block, place(thread, 0));
    task.exists = task.column < columns;
    const std::uint32_t begin = chunk(block) * chunk_rows;
    task.row = begin + row(thread);
    task.end = rows - begin < chunk_rows ? rows : begin + chunk_rows;
    if (!task.exists) task.end = 0;
    return task;
  }

  /// Whether the columns are the channels.
  bool is_plain() const { return columns == channels; }
  std::uint32_t channel(std::uint32_t column) const {
    return is_plain() ? column : inner.quotient(width.remainder(column));
  }

  /// As in ChannelFirst.
  template <int kVector>
  static constexpr int kChannels = kVector;
  std::uint32_t channel(const Task& task, std::uint32_t i) const {
    return channel(task.column + i);
  }

  // As in ChannelFirst. The places of a row begin with the first column of every thread. The second
  // columns follow, and so on. So neighbouring threads use neighbouring memory.
  static constexpr std::uint32_t rows_at_once() { return kThreads / kLanes; }
  template <int kVector>
  static constexpr std::uint32_t tile_columns() {
    return kLanes * kVector;
  }
  static std::uint32_t row(std::uint32_t thread) { return thread / kLanes; }
  static std::uint32_t place(std::uint32_t thread, std::uint32_t i) {
    return i * kLanes + thread % kLanes;
  }
  template <int kVector>
  std::uint32_t column(std::uint32_t block, std::uint32_t place) const {
    return tiles.remainder(block) * tile_columns<kVector>() + place % kLanes * kVector +
           place / kLanes;
  }
  std::uint32_t chunk(std::uint32_t block) const { return tiles.quotient(block); }
  ResultPlaces results() const {
    const std::uint32_t in_chunk = fold * inner.divisor;
    return {columns, chunks * in_chunk, width.divisor, FastDivisor::of(in_chunk), inner};
  }
};

}  // namespace gluon_syncbn::cuda

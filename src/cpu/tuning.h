#pragma once

#include <cstdint>

// The numbers by which kernels and passes fit the caches and cores of CPUs. None depends on the
// machine.

namespace gluon_syncbn::cpu {

/// Numbers that a lane adds before its sum is merged. Their rounding errors stay small.
constexpr std::int64_t kAddsPerLane = 128;
/// Independent sums of a run, so that an addition need not wait for the previous addition.
constexpr std::int64_t kChains = 4;

/// The columns of a matrix are summed in tiles of about this many columns.
constexpr std::int64_t kTile = 512;
/// This many rows of a tile are added in registers before the result is added to the sums in
/// memory.
constexpr std::int64_t kRowGroup = 8;
/// Rows are fetched into the cache this far ahead.
constexpr std::int64_t kRowsAhead = 32;

/// A channel with fewer contiguous elements is faster to compute as columns of a matrix.
constexpr std::int64_t kShortInner = 16;
/// Shorter rows are joined until they have about this many columns. Sums take fewer columns,
/// because each column has its own sums.
constexpr std::int64_t kSumColumns = 128;
constexpr std::int64_t kOutputColumns = 512;
/// A thread takes this many elements of a matrix at a time, for outputs and for sums.
constexpr std::int64_t kGrain = 32768;
constexpr std::int64_t kSlab = 131072;
/// A part of a matrix has at least this many rows, so that its column sums are few beside its
/// elements.
constexpr std::int64_t kRowsPerColumn = 128;
/// A thread takes this many elements of channels with runs at a time. Memory is faster the more of
/// them lie side by side, until they fill the private cache of a core.
constexpr std::int64_t kLeastGrain = 65536;
constexpr std::int64_t kMostGrain = 262144;
/// But the channels are divided into at least this many parts for each thread, if they are many.
constexpr std::int64_t kPartsOfThread = 4;
/// An output of this size leaves the caches before it is used again. So it is written past them if
/// its runs are long enough. The ends of a run are slow, because they share cache lines with
/// others.
constexpr std::int64_t kLargeBytes = 4 << 20;
constexpr std::int64_t kStreamRunBytes = 1024;

/// If a device has this many elements, no cache keeps them until all devices have come. A sum
/// before that would read the elements from memory once more.
constexpr std::int64_t kTooManyToSumAhead = 3 << 19;
/// If all devices together have this many elements, a few channels at a time go through the whole
/// pass. So the elements that the sums have read are still in the cache for the outputs. Fewer
/// elements stay in the caches of the cores that have read them, so each device computes its
/// outputs on its own thread.
constexpr std::int64_t kManyOfAll = 1 << 21;
/// If all devices together have at most this many elements, it takes longer to wake a thread than
/// to compute the outputs.
constexpr std::int64_t kFewOfAll = 1 << 16;

/// With fewer parts, the calling thread is done before a helper wakes up.
constexpr std::int64_t kFewParts = 8;

}  // namespace gluon_syncbn::cpu

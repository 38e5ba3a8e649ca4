#pragma once

#include <cstdint>

// The numbers by which kernels and passes fit the caches and cores of CPUs. How arrays are divided
// into sums depends on these and on the layout alone. Only the parts that threads take depend on
// the number of threads.

namespace gluon_syncbn::cpu {

/// In long runs a lane adds about this many numbers before its sum is merged, so that rounding
/// errors stay small: the mean of 30,000 elements in one sum has up to four times the error that
/// tests allow. In short runs and in columns a lane may add several times as many.
constexpr std::int64_t kAddsPerLane = 128;
/// Independent sums of a run, so that an addition need not wait for the previous addition.
constexpr std::int64_t kChains = 4;

/// The columns of a matrix are summed in tiles of about this many columns.
constexpr std::int64_t kTile = 512;
/// The sums of this many columns stay in registers.
constexpr std::int64_t kColumnsTogether = 8;
/// They stay there for this many rows. The pivots are the means of as many rows.
constexpr std::int64_t kRowGroup = 8;
/// Rows are fetched into the cache this many rows ahead.
constexpr std::int64_t kRowsAhead = 32;

/// Shorter rows of a matrix are joined, up to this many columns. Sums take fewer, because each
/// column has its own sums.
constexpr std::int64_t kSumColumns = 128;
constexpr std::int64_t kOutputColumns = 512;
/// A thread takes about this many elements of a matrix at a time: kGrain for outputs, kSlab for
/// sums.
constexpr std::int64_t kGrain = 32768;
constexpr std::int64_t kSlab = 131072;
/// A part of a matrix has at least this many rows, so that its column sums are few beside its
/// elements.
constexpr std::int64_t kLeastRows = 128;
/// A thread takes channels with this many elements at a time, or one larger channel. More
/// neighbouring elements are faster to read, until they fill the private cache of a core.
constexpr std::int64_t kLeastGrain = 65536;
constexpr std::int64_t kMostGrain = 262144;
/// Within these limits, each thread gets this many parts.
constexpr std::int64_t kPartsOfThread = 4;
/// An output of this size leaves the caches before it is used again. So it is written past them if
/// its runs are long enough. The ends of a run are slow, because they share cache lines with
/// neighbouring runs.
constexpr std::int64_t kLargeBytes = 4 << 20;
constexpr std::int64_t kStreamRunBytes = 1024;

/// With fewer parts, the calling thread is done before a helper wakes up.
constexpr std::int64_t kLeastParts = 8;

}  // namespace gluon_syncbn::cpu

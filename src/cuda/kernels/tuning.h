#pragma once

#include <cstdint>

// The numbers by which the kernels fit GPUs. They do not depend on the GPU, so that every GPU sums
// in the same order.

namespace gluon_syncbn::cuda {

/// Threads per block. A small number gives small arrays a block for every multiprocessor.
constexpr int kThreads = 128;

/// Blocks for which a multiprocessor must have enough registers: enough to hide the latency of
/// memory, and few enough that no register is spilled.
template <class R, bool kIsActivated>
constexpr int kResidentBlocks = sizeof(R) > 4  ? 3
                                : kIsActivated ? 5
                                               : 6;

/// Accesses of a thread to each of several arrays that should overlap.
template <int kInputs>
constexpr int kAccessesTogether = kInputs == 1 ? 4 : 2;

/// Blocks that fill a GPU. An array makes fewer if each would have too few elements. Outputs have
/// more blocks than sums, because no kernel merges them.
constexpr std::int64_t kSumBlocks = 1024;
constexpr std::int64_t kOutputBlocks = 2048;
/// If one block per channel makes this many blocks, a block may take more of its channel.
constexpr std::int64_t kEnoughBlocks = 256;
/// One block sums a channel, or a tile of columns, that has at most so many accesses for each
/// thread. To merge the sums of several blocks would take longer.
constexpr std::int64_t kAccessesWithoutMerge = 8;

/// A matrix of fewer rows leaves more than half of the threads idle.
constexpr std::int64_t kEnoughRows = 8;

/// A thread has at least two accesses, whose loads overlap.
constexpr std::int64_t kLeastAccesses = 2;
constexpr std::int64_t kLeastElements = 8;
/// A thread adds at most this many elements in float. A block merges in the type of its elements,
/// and MergeBlocks merges in double.
constexpr std::int64_t kMostElements = 128;

}  // namespace gluon_syncbn::cuda

#ifndef GLUON_SYNCBN_CUDA_KERNELS_BETWEEN_BLOCKS_H_
#define GLUON_SYNCBN_CUDA_KERNELS_BETWEEN_BLOCKS_H_

#include <cstdint>

#include "common/host_device.h"

// The last block of a kernel merges the results of all blocks, so that no second kernel has to
// follow. On the CPU these functions are atomic operations that the thread sanitizer understands.
// GPUs before sm_70 have no atomic operation that acquires and releases, only stronger fences.

namespace gluon_syncbn::cuda {

/// Loads a value that another block of this kernel has written. The load bypasses the cache of the
/// multiprocessor, which may be stale.
GLUON_SYNCBN_HOST_DEVICE inline double load_cg(const double* from) {
#ifdef __CUDA_ARCH__
  return __ldcg(from);
#else
  return *from;
#endif
}

/// Loads a structure of 8 bytes, or of a multiple of 16, in the same way.
template <class Struct>
GLUON_SYNCBN_HOST_DEVICE Struct load_cg(const Struct* from) {
#ifdef __CUDA_ARCH__
  union {
    Struct value;
    int4 words[(sizeof(Struct) + 15) / 16];
    int2 half;
  } loaded;
  if (sizeof(Struct) % 16 == 0) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Struct) / 16); ++i) {
      loaded.words[i] = __ldcg(reinterpret_cast<const int4*>(from) + i);
    }
  } else {
    static_assert(sizeof(Struct) % 16 == 0 || sizeof(Struct) == 8);
    loaded.half = __ldcg(reinterpret_cast<const int2*>(from));
  }
  return loaded.value;
#else
  return *from;
#endif
}

/// Counts `number` threads, one of each block, and returns true to the last of them. It then sees
/// everything that the other blocks wrote in earlier steps, and that the counted threads wrote in
/// this step. Its block sees that from the next step on. The counter is zero before the first call
/// and after the last one, ready for the next kernel.
GLUON_SYNCBN_HOST_DEVICE inline bool is_last_block(std::uint32_t* counter, std::uint32_t number) {
  const std::uint32_t last = number - 1;
#ifdef __CUDA_ARCH__
#if __CUDA_ARCH__ >= 700
  std::uint32_t before;
  asm volatile("atom.acq_rel.gpu.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(last)
               : "memory");
  return before == last;
#else
  __threadfence();
  const bool is_last = atomicInc(counter, last) == last;
  __threadfence();
  return is_last;
#endif
#else
  if (__atomic_fetch_add(counter, 1u, __ATOMIC_ACQ_REL) != last) return false;
  __atomic_store_n(counter, 0u, __ATOMIC_RELEASE);
  return true;
#endif
}

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_KERNELS_BETWEEN_BLOCKS_H_

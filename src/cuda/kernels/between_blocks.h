#ifndef GLUON_SYNCBN_CUDA_KERNELS_BETWEEN_BLOCKS_H_
#define GLUON_SYNCBN_CUDA_KERNELS_BETWEEN_BLOCKS_H_

#include <cstdint>

#include "common/host_device.h"

// What the blocks of one kernel let each other know, so that no second kernel has to follow. On the
// CPU these are atomic operations that the thread sanitizer understands. GPUs before sm_70 have
// none that acquire and release, but fences, which keep more apart than they need to.

namespace gluon_syncbn::cuda {

/// What another block of this kernel has written: not from a cache that only this block's
/// multiprocessor has.
GLUON_SYNCBN_HOST_DEVICE inline double load_cg(const double* from) {
#ifdef __CUDA_ARCH__
  return __ldcg(from);
#else
  return *from;
#endif
}

/// The same for a structure of full 8 bytes, as many at a time as there can be.
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

/// Counts those who come here, of which there are `number`. To the last of them, and with the next
/// step to its block, everything is visible that the blocks of the others wrote in steps before,
/// and the thread that calls this in this one. The counter is zero before the first and after the
/// last, ready for the next kernel.
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

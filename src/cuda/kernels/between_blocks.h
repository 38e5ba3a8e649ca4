#ifndef GLUON_SYNCBN_CUDA_KERNELS_BETWEEN_BLOCKS_H_
#define GLUON_SYNCBN_CUDA_KERNELS_BETWEEN_BLOCKS_H_

#include <cstdint>

#include "common/host_device.h"

#ifndef __CUDA_ARCH__
#include <thread>
#endif

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

/// Lets one block of a kernel do for all what has to be done once, for each of several things. No
/// thread may wait before every thread of its block has published what it has claimed. Then a block
/// waits only for blocks that run already and wait for nobody: in whatever order blocks start, and
/// however few run at a time, none waits forever.
struct Claims {
  using State = unsigned long long;

  State* states;  // one for each thing; any numbers
  State number;   // that no other kernel has had with these states

  /// True for one caller only, who has to publish.
  GLUON_SYNCBN_HOST_DEVICE bool claim(std::int64_t thing) const {
    State* state = &states[thing];
#ifdef __CUDA_ARCH__
    State now = *const_cast<const volatile State*>(state);
#else
    State now = __atomic_load_n(state, __ATOMIC_RELAXED);
#endif
    while (now != claimed() && now != published()) {
#ifdef __CUDA_ARCH__
      const State before = atomicCAS(state, now, claimed());
      if (before == now) return true;
      now = before;
#else
      if (__atomic_compare_exchange_n(state, &now, claimed(), false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
        return true;
      }
#endif
    }
    return false;
  }
  /// What this thread wrote before is visible to those who have waited.
  GLUON_SYNCBN_HOST_DEVICE void publish(std::int64_t thing) const {
#ifdef __CUDA_ARCH__
#if __CUDA_ARCH__ >= 700
    asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(&states[thing]), "l"(published()) : "memory");
#else
    __threadfence();
    atomicExch(&states[thing], published());
#endif
#else
    __atomic_store_n(&states[thing], published(), __ATOMIC_RELEASE);
#endif
  }
  GLUON_SYNCBN_HOST_DEVICE void wait(std::int64_t thing) const {
    while (acquired(&states[thing]) != published()) {
#ifndef __CUDA_ARCH__
      std::this_thread::yield();
#elif __CUDA_ARCH__ >= 700
      __nanosleep(kPause);
#endif
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
    __threadfence();
#endif
  }

 private:
  static constexpr unsigned kPause = 20;  // nanoseconds, as long as a read takes or less

  GLUON_SYNCBN_HOST_DEVICE State claimed() const { return 2 * number; }
  GLUON_SYNCBN_HOST_DEVICE State published() const { return 2 * number + 1; }
  GLUON_SYNCBN_HOST_DEVICE static State acquired(const State* state) {
#ifdef __CUDA_ARCH__
#if __CUDA_ARCH__ >= 700
    State now;
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(now) : "l"(state) : "memory");
    return now;
#else
    return *const_cast<const volatile State*>(state);
#endif
#else
    return __atomic_load_n(state, __ATOMIC_ACQUIRE);
#endif
  }
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_KERNELS_BETWEEN_BLOCKS_H_

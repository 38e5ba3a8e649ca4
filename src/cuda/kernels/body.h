#pragma once

#include <cstdint>

#include "cuda/kernels/pack.h"
#include "cuda/kernels/tuning.h"

// A body is the work of a kernel: a struct of its arguments with
//
//   kName                      for messages
//   Shared                     memory of a block
//   kBlockThreads              threads of a block
//   kSteps                     number of steps
//   kResident                  one of kResidentBlocks
//   step(step, block, thread, Shared*) const
//
// All threads of a block take a step before one of them takes the next one. So a kernel is its
// steps with barriers between (program.h), and the CPU can run the same source in lockstep
// (tests/gpu/emulation/lockstep.h). The bodies are in headers that g++ and NVRTC understand.

#ifdef __CUDA_ARCH__
#define GLUON_SYNCBN_UNROLL _Pragma("unroll")
#define GLUON_SYNCBN_NO_UNROLL _Pragma("unroll 1")
#else
#define GLUON_SYNCBN_UNROLL
#define GLUON_SYNCBN_NO_UNROLL
#endif

namespace gluon_syncbn::cuda {

/// Loads an access.
template <class T>
Pack<T> load(const T* from) {
  return *reinterpret_cast<const Pack<T>*>(from);
}

/// Half of an access.
struct alignas(8) [[gnu::may_alias]] HalfAccess {
  std::uint32_t words[2];
};

/// Loads the first `size` elements of an access. With `has_halves`, the size is 0, half or full.
template <class T>
Pack<T> load(const T* from, std::uint32_t size, bool has_halves) {
  if (size == kWidest<T>) return load(from);
  Pack<T> pack{};
  if (has_halves) {
    if (size > 0) {
      *reinterpret_cast<HalfAccess*>(&pack) = *reinterpret_cast<const HalfAccess*>(from);
    }
    return pack;
  }
  GLUON_SYNCBN_UNROLL
  for (int i = 0; i < kWidest<T> - 1; ++i) {
    if (static_cast<std::uint32_t>(i) < size) pack.set(i, from[i]);
  }
  return pack;
}

/// Replaces the first `size` elements of an access by `values`, or adds these to them. Overwrites
/// `values`. The output stays in the GPU's cache as long as other data, for the next layer.
template <class T>
void store(T* to, std::uint32_t size, Real<T>* values, bool add, bool has_halves) {
  if (add) {
    const Pack<T> old = load(static_cast<const T*>(to), size, has_halves);
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kWidest<T>; ++i) values[i] += old.real(i);
  }
  Pack<T> pack{};
  GLUON_SYNCBN_UNROLL
  for (int i = 0; i < kWidest<T>; ++i) pack.set(i, from_real<T>(values[i]));
  if (size == kWidest<T>) {
    *reinterpret_cast<Pack<T>*>(to) = pack;
    return;
  }
  if (has_halves) {
    *reinterpret_cast<HalfAccess*>(to) = *reinterpret_cast<const HalfAccess*>(&pack);
    return;
  }
  GLUON_SYNCBN_UNROLL
  for (int i = 0; i < kWidest<T> - 1; ++i) {
    if (static_cast<std::uint32_t>(i) < size) to[i] = pack.get(i);
  }
}

}  // namespace gluon_syncbn::cuda

#pragma once

#include "cuda/kernels/numbers.h"
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
// steps with barriers between (kernel.cuh), and the CPU can run the same source in lockstep
// (tests/native/emulation/lockstep.h).

#ifdef __CUDA_ARCH__
#define GLUON_SYNCBN_UNROLL _Pragma("unroll")
#define GLUON_SYNCBN_NO_UNROLL _Pragma("unroll 1")
#else
#define GLUON_SYNCBN_UNROLL
#define GLUON_SYNCBN_NO_UNROLL
#endif

namespace gluon_syncbn::cuda {

template <int N, class T>
GLUON_SYNCBN_HOST_DEVICE AlignedVector<T, N> load(const T* from) {
  return *reinterpret_cast<const AlignedVector<T, N>*>(from);
}

/// Loads the first `size` of N neighbours.
template <int N, class T>
GLUON_SYNCBN_HOST_DEVICE AlignedVector<T, N> load_piece(const T* from, std::uint32_t size) {
  if (size == N) return load<N>(from);
  AlignedVector<T, N> pack{};
  GLUON_SYNCBN_UNROLL
  for (std::uint32_t i = 0; i < N; ++i) {
    if (i < size) pack.at[i] = from[i];
  }
  return pack;
}

/// Replaces N neighbours by `values`, or adds these to them. No thread of this kernel reads the
/// output, so the inputs keep their place in the GPU's cache.
template <int N, class T>
GLUON_SYNCBN_HOST_DEVICE void store(T* to, const Real<T>* values, bool add) {
  AlignedVector<T, N> pack;
  if (add) {
    pack = load<N>(static_cast<const T*>(to));
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < N; ++i) pack.at[i] = from_real<T>(to_real(pack.at[i]) + values[i]);
  } else {
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < N; ++i) pack.at[i] = from_real<T>(values[i]);
  }
#ifdef __CUDA_ARCH__
  if constexpr (sizeof pack == 16) {
    __stcs(reinterpret_cast<float4*>(to), *reinterpret_cast<const float4*>(&pack));
    return;
  }
#endif
  *reinterpret_cast<AlignedVector<T, N>*>(to) = pack;
}

/// The same for the first `size` of N neighbours.
template <int N, class T>
GLUON_SYNCBN_HOST_DEVICE void store_piece(T* to, std::uint32_t size, const Real<T>* values,
                                          bool add) {
  if (size == N) return store<N>(to, values, add);
  GLUON_SYNCBN_UNROLL
  for (std::uint32_t i = 0; i < N; ++i) {
    if (i < size) store<1>(to + i, &values[i], add);
  }
}

}  // namespace gluon_syncbn::cuda

#pragma once

#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/merge_blocks.h"
#include "cuda/kernels/merge_devices.h"
#include "cuda/kernels/reduce.h"
#include "cuda/kernels/sources.h"
#include "cuda/kernels/thread_per_channel.h"

// The part of a kernel's program that is the same for all kernels. KernelSource::text()
// (cuda/compiler.h) is the rest: a kernel that calls run_from<0>(body, &shared).

namespace gluon_syncbn::cuda {

/// A recursion, because the compiler does not unroll every loop over steps. Registers of all steps
/// would then be live at once.
template <int kStep, class Body>
__device__ __forceinline__ void run_from(const Body& body, typename Body::Shared* shared) {
  if constexpr (kStep < Body::kSteps) {
    if constexpr (kStep > 0) __syncthreads();
    body.step(kStep, blockIdx.x, threadIdx.x, shared);
    run_from<kStep + 1>(body, shared);
  }
}

}  // namespace gluon_syncbn::cuda

/// Defines the kernel of a body. The numbers are its size and its alignment on the host.
#define GLUON_SYNCBN_KERNEL(name, bytes, alignment, ...)                             \
  using Body = __VA_ARGS__;                                                          \
  static_assert(sizeof(Body) == bytes && alignof(Body) == alignment);                \
  extern "C" __global__ void __launch_bounds__(Body::kBlockThreads, Body::kResident) \
      name(const Body body) {                                                        \
    __shared__ Body::Shared shared;                                                  \
    gluon_syncbn::cuda::run_from<0>(body, &shared);                                  \
  }

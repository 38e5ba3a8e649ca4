#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <string>

#include "common/error.h"
#include "cuda/check.h"
#include "cuda/kernels/instances.h"
#include "cuda/runtime.h"

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

template <class Body>
__global__ void __launch_bounds__(Body::kBlockThreads, Body::kResident) run(const Body body) {
  __shared__ typename Body::Shared shared;
  run_from<0>(body, &shared);
}

template <class Body>
void launch(const Body& body, std::int64_t blocks, Stream* stream) {
  if (blocks == 0) return;
  if (blocks > std::numeric_limits<std::int32_t>::max()) {
    throw Error(std::string("kernel '") + Body::kName + "' needs " + std::to_string(blocks) +
                " blocks, more than CUDA allows");
  }
  const OnDevice on_device(stream->ordinal());
  // <<<>>> would leave only a last error, which may be an error of MXNet.
  void* arguments[] = {const_cast<Body*>(&body)};
  // Before CUDA 12 no overload takes a pointer to a function.
  void (*const kernel)(Body) = run<Body>;
  const cudaError_t status =
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)),
                       dim3(Body::kBlockThreads), arguments, 0, stream->handle());
  check(status, std::string("kernel '") + Body::kName + "'", stream->ordinal());
}

template <class Body>
void load(int ordinal) {
  cudaFuncAttributes attributes{};
  void (*const kernel)(Body) = run<Body>;
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
        std::string("kernel '") + Body::kName + "'", ordinal);
}

#define GLUON_SYNCBN_CUDA_INSTANTIATE(...)                         \
  template void launch(const __VA_ARGS__&, std::int64_t, Stream*); \
  template void load<__VA_ARGS__>(int);

}  // namespace gluon_syncbn::cuda

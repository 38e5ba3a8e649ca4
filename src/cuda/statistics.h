#ifndef GLUON_SYNCBN_CUDA_STATISTICS_H_
#define GLUON_SYNCBN_CUDA_STATISTICS_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "cuda/gpu.h"
#include "cuda/kernels/channels.h"
#include "norm/statistics.h"

namespace gluon_syncbn::cuda {

/// Statistics in memory of a GPU, which the kernel of the normalization fills.
struct GpuStatistics : Statistics {
  GpuStatistics(Gpu* gpu, std::int64_t channels_in)
      : memory(gpu->memory(3 * static_cast<std::size_t>(channels_in))), channels(channels_in) {}

  Pool<Memory>::Lease memory;
  std::int64_t channels;
  // What they are made of, for running statistics.
  const void* running_mean = nullptr;
  const void* running_variance = nullptr;

  StatisticsArrays arrays() const {
    auto* begin = static_cast<double*>(memory->data());
    return {begin, begin + channels, begin + 2 * channels};
  }

  static const GpuStatistics& of(const Statistics& statistics) {
    return static_cast<const GpuStatistics&>(statistics);
  }
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_STATISTICS_H_

#ifndef GLUON_SYNCBN_CUDA_STATISTICS_H_
#define GLUON_SYNCBN_CUDA_STATISTICS_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/dtype.h"
#include "cuda/gpu.h"
#include "cuda/kernels/channels.h"
#include "norm/backend.h"
#include "norm/statistics.h"

namespace gluon_syncbn::cuda {

/// Statistics in memory of a GPU, which the kernel of the normalization fills. Before them is room
/// for the normalizations that an activation needs in backward.
struct GpuStatistics : Statistics {
  GpuStatistics(Gpu* gpu, const Backend::Data& data)
      : channels(data.layout.channels),
        normalization_size(dispatch(
            data.dtype,
            [](auto types) { return sizeof(StoredAffine<typename decltype(types)::Parameter>); })),
        memory(gpu->memory((3 + normalization_size / sizeof(double)) *
                           static_cast<std::size_t>(channels))) {}

  std::int64_t channels;
  std::size_t normalization_size;
  Pool<Memory>::Lease memory;
  // What they are made of, for running statistics.
  const void* running_mean = nullptr;
  const void* running_variance = nullptr;

  StatisticsArrays arrays() const {
    auto* begin = static_cast<double*>(memory->data()) +
                  normalization_size / sizeof(double) * static_cast<std::size_t>(channels);
    return {begin, begin + channels, begin + 2 * channels};
  }
  template <class P>
  StoredAffine<P>* normalizations() const {
    return static_cast<StoredAffine<P>*>(memory->data());
  }

  static const GpuStatistics& of(const Statistics& statistics) {
    return static_cast<const GpuStatistics&>(statistics);
  }
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_STATISTICS_H_

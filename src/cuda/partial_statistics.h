#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cuda/gpu.h"
#include "norm/moments.h"

namespace gluon_syncbn::cuda {

/// Partial statistics in pinned memory, which kernels of all GPUs read. One device computes them
/// for its peers, or the host merges them from all processes for the devices of this process.
class GpuPartialStatistics {
 public:
  /// Leases memory for statistics of `count` elements per channel, which `gpu` computes. The caller
  /// launches the kernels that fill values(), and then calls written().
  GpuPartialStatistics(Gpu* gpu, std::size_t doubles, std::int64_t count)
      : gpu_(gpu),
        memory_(gpu->host_memory(doubles)),
        written_(gpu->event()),
        doubles_(doubles),
        count_(count) {}
  /// Copies statistics that the host has computed.
  GpuPartialStatistics(Gpu* gpu, const PartialStatistics& statistics)
      : gpu_(gpu),
        memory_(gpu->host_memory(statistics.values.size())),
        doubles_(statistics.values.size()),
        count_(statistics.count) {
    std::copy(statistics.values.begin(), statistics.values.end(), values());
  }

  std::int64_t count() const { return count_; }
  double* values() const { return static_cast<double*>(memory_->data()); }

  /// Notes that the values are written after the work that is on the stream of the GPU now.
  void written() { written_->record(gpu_->stream()); }
  /// Blocks the calling thread until the values are written. Throws as Gpu::wait_for().
  void wait() const {
    if (written_) gpu_->wait_for(*written_);
  }
  PartialStatistics copy() const { return {count_, {values(), values() + doubles_}}; }

 private:
  Gpu* const gpu_;
  const Pool<Memory>::Lease memory_;
  const std::shared_ptr<Event> written_;  // null if the host has written the values
  const std::size_t doubles_;
  const std::int64_t count_;  // elements per channel
};

using GpuPartialStatisticsPtr = std::shared_ptr<GpuPartialStatistics>;

}  // namespace gluon_syncbn::cuda

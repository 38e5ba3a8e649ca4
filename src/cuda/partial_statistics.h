#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/gpu.h"
#include "norm/moments.h"

namespace gluon_syncbn::cuda {

/// Partial statistics in memory that GPUs read. One device computes them for its peers, or the host
/// merges them from all processes for the devices of this process.
class GpuPartialStatistics {
 public:
  /// Leases memory for statistics of `count` elements per channel, which `gpu` computes. The caller
  /// launches the kernels that fill values(), and then calls written().
  GpuPartialStatistics(Gpu* gpu, std::size_t doubles, std::int64_t count)
      : gpu_(gpu), message_(gpu->message(doubles)), doubles_(doubles), count_(count) {}
  /// Copies statistics that the host has computed to pinned memory.
  GpuPartialStatistics(Gpu* gpu, const PartialStatistics& statistics);

  std::int64_t count() const { return count_; }
  /// Lies in memory of the GPU, or in pinned memory if the host has computed the statistics.
  double* values() const { return static_cast<double*>(message_.memory->data()); }
  /// A second place in pinned memory, which kernels fill as well; null: none.
  double* copy() const {
    return message_.on_host ? static_cast<double*>(message_.on_host->data()) : nullptr;
  }

  /// Notes that the values are written after the work that is on the stream of the GPU now.
  void written() { message_.written->record(gpu_->stream()); }

  /// Whether wait() would return at once.
  bool is_written() const { return !message_.written || message_.written->is_reached(); }
  /// Blocks the calling thread until the values are written. Throws as Gpu::wait_for().
  void wait() const {
    if (message_.written) gpu_->wait_for(*message_.written);
  }

  /// Makes the second place if there is none, and gives one to later messages of this GPU. Must be
  /// called before any GPU waits for these statistics, because it calls written() again.
  void leave_on_host();
  /// Calls leave_on_host() if the GPU of a peer cannot read values().
  void let_read(const std::vector<std::shared_ptr<GpuPartialStatistics>>& peers);
  /// Returns the address at which later kernels on the stream of `reader` read the statistics:
  /// values(), or copy() without peer access. Copies statistics of the host to memory that
  /// `scratch` gives.
  const double* read_by(Gpu* reader, const Scratch& scratch) const;

  /// Waits for the copy on the host, and returns it. To be called on the thread of a GPU.
  PartialStatistics wait_for_copy() const;

 private:
  Gpu* const gpu_;
  Gpu::MessageMemory message_;  // leave_on_host() adds the second place
  const std::size_t doubles_;
  const std::int64_t count_;  // elements per channel
};

using GpuPartialStatisticsPtr = std::shared_ptr<GpuPartialStatistics>;

}  // namespace gluon_syncbn::cuda

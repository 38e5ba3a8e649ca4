#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/gpu.h"
#include "norm/moments.h"

namespace gluon_syncbn::cuda {

/// Partial statistics in memory that GPUs read: of one device for its peers, or of all processes
/// for the devices of this process.
class GpuPartialStatistics {
 public:
  /// Memory for the statistics that `gpu` computes of `count` elements per channel. The caller
  /// launches the kernels that fill values(), and then calls written().
  GpuPartialStatistics(Gpu* gpu, std::size_t doubles, std::int64_t count)
      : gpu_(gpu), message_(gpu->message(doubles)), doubles_(doubles), count_(count) {}
  /// Statistics that the host has computed.
  GpuPartialStatistics(Gpu* gpu, const PartialStatistics& statistics);

  std::int64_t count() const { return count_; }
  /// In memory of the GPU; in pinned memory if the host has computed them.
  double* values() const { return static_cast<double*>(message_.memory->data()); }
  /// A second place in pinned memory, which kernels fill as well; null: none.
  double* copy() const {
    return message_.on_host ? static_cast<double*>(message_.on_host->data()) : nullptr;
  }

  /// To be called after the kernels that fill the values are on the stream of the GPU.
  void written() const { message_.written->record(gpu_->stream()); }

  /// Work that follows on `stream` starts after the values are written.
  void keep_waiting(Stream* stream) const {
    if (message_.written) stream->wait(*message_.written);
  }

  /// Leaves a copy on the host unless there is one. Later messages of this GPU have a second place.
  /// To be called before any GPU waits for these statistics.
  void leave_on_host() const;
  /// The same if the GPU of one of `peers` cannot read values().
  void let_read(const std::vector<std::shared_ptr<const GpuPartialStatistics>>& peers) const;
  /// Returns the address at which later kernels on the stream of `reader` read the statistics:
  /// values(), or copy() without peer access. Statistics of the host are copied to memory that
  /// `scratch` gives.
  const double* read_by(Gpu* reader, const Scratch& scratch) const;

  /// Returns the error of the kernels that fill the values, or "". A GPU that fails leaves no
  /// numbers, and a peer that has read them learns of it only here. To be called on the thread of a
  /// GPU after its work.
  std::string error() const;

  /// Waits for the copy on the host, and returns it. To be called on the thread of a GPU.
  PartialStatistics wait_for_copy() const;

 private:
  Gpu* const gpu_;
  mutable Gpu::MessageMemory message_;  // leave_on_host() adds the second place
  const std::size_t doubles_;
  const std::int64_t count_;  // elements per channel
};

using GpuPartialStatisticsPtr = std::shared_ptr<const GpuPartialStatistics>;

}  // namespace gluon_syncbn::cuda

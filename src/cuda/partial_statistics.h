#ifndef GLUON_SYNCBN_CUDA_PARTIAL_STATISTICS_H_
#define GLUON_SYNCBN_CUDA_PARTIAL_STATISTICS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/gpu.h"
#include "norm/moments.h"

namespace gluon_syncbn::cuda {

/// Partial statistics in memory that GPUs read: of one device for its peers, or of all processes
/// for the devices of this process.
class GpuPartialStatistics : public std::enable_shared_from_this<GpuPartialStatistics> {
 public:
  using Then = std::function<void(const PartialStatistics& copy, const std::string& error)>;

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

  /// Leaves a copy on the host if the GPU of one of `peers` cannot read values(). Later messages of
  /// this GPU then have a second place. To be called before any GPU waits for these statistics.
  void let_read(const std::vector<std::shared_ptr<const GpuPartialStatistics>>& peers) const;
  /// Returns the address at which later kernels on the stream of `reader` read the statistics:
  /// values(), or copy() without peer access. Statistics of the host are copied to memory that
  /// `room` gives.
  const double* read_by(Gpu* reader, const Room& room) const;

  /// Returns the error of the kernels that fill the values, or "". A GPU that fails leaves no
  /// numbers, and a peer that has read them learns of it only here. To be called on the thread of a
  /// GPU after its work.
  std::string error() const;

  /// As copy_to_host() below, for these statistics alone. For one device the calls of `then` keep
  /// the order of the calls of this.
  void copy_to_host(Then then) const;

 private:
  void leave_on_host() const;

  Gpu* const gpu_;
  mutable Gpu::Message message_;  // leave_on_host() adds the second place
  const std::size_t doubles_;
  const std::int64_t count_;  // elements per channel
};

using GpuPartialStatisticsPtr = std::shared_ptr<const GpuPartialStatistics>;

/// Calls `then` exactly once, now or later, from any thread, with copies of `all` on the host or
/// with an error. `all` has at least one entry, and the copies have its order. Does not throw.
void copy_to_host(const std::vector<GpuPartialStatisticsPtr>& all,
                  const std::function<void(const std::vector<PartialStatistics>& copies,
                                           const std::string& error)>& then);

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_PARTIAL_STATISTICS_H_

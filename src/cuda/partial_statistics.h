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

/// Partial statistics where GPUs read them: those of one device for its peers, or those of all
/// processes for the devices of this one.
class GpuPartialStatistics : public std::enable_shared_from_this<GpuPartialStatistics> {
 public:
  using Then = std::function<void(const PartialStatistics& copy, const std::string& error)>;

  /// Room for what `gpu` computes, of `count` elements a channel. Kernels fill values(); then
  /// written().
  GpuPartialStatistics(Gpu* gpu, std::size_t doubles, std::int64_t count)
      : gpu_(gpu), message_(gpu->message(doubles)), doubles_(doubles), count_(count) {}
  /// Those of the host.
  GpuPartialStatistics(Gpu* gpu, const PartialStatistics& statistics);

  std::int64_t count() const { return count_; }
  /// On the GPU or, if the host has written them, there.
  double* values() const { return static_cast<double*>(message_.memory->data()); }
  /// A second place, which kernels have to fill as well; null: none.
  double* copy() const {
    return message_.on_host ? static_cast<double*>(message_.on_host->data()) : nullptr;
  }

  /// What fills the values is on the stream of the GPU now.
  void written() const { message_.written->record(gpu_->stream()); }

  /// Work that follows on `stream` starts after the values are written.
  void keep_waiting(Stream* stream) const {
    if (message_.written) stream->wait(*message_.written);
  }

  /// Leaves a copy on the host if one of the GPUs cannot read the values in place. The next
  /// messages of this GPU then have a second place. Called before any GPU waits for these.
  void let_read(const std::vector<Gpu*>& readers) const;
  /// Where kernels that come next on the stream of `reader`, after these, find the values: in
  /// place, in memory of the host if they cannot read them there, or in memory that `room` gives if
  /// they come from the host.
  const double* read_by(Gpu* reader, const std::function<double*(std::size_t)>& room) const;

  /// What went wrong in the kernels that fill them, for a GPU that has waited for these; or "".
  /// A GPU that fails leaves no numbers, and a peer that has read them hears of it only here. To be
  /// called on the thread of a GPU.
  std::string error() const;

  /// As copy_to_host(), this one alone. Those of one device are copied in the order of the calls.
  void copy_to_host(Then then) const;

 private:
  Gpu* const gpu_;
  mutable Gpu::Message message_;  // to which let_read() adds the second place
  const std::size_t doubles_;
  const std::int64_t count_;  // elements of a channel
};

using GpuPartialStatisticsPtr = std::shared_ptr<const GpuPartialStatistics>;

/// Calls `then` exactly once, now or later, from any thread, with copies on the host of `all`, at
/// least one, in this order, or with what went wrong. Does not throw.
void copy_to_host(const std::vector<GpuPartialStatisticsPtr>& all,
                  const std::function<void(const std::vector<PartialStatistics>& copies,
                                           const std::string& error)>& then);

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_PARTIAL_STATISTICS_H_

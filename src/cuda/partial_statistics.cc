#include "cuda/partial_statistics.h"

#include <algorithm>

namespace gluon_syncbn::cuda {

GpuPartialStatistics::GpuPartialStatistics(Gpu* gpu, const PartialStatistics& statistics)
    : gpu_(gpu),
      message_{gpu->host_memory(statistics.values.size()), {}, {}},
      doubles_(statistics.values.size()),
      count_(statistics.count) {
  std::copy(statistics.values.begin(), statistics.values.end(), values());
}

void GpuPartialStatistics::let_read(const std::vector<GpuPartialStatisticsPtr>& peers) {
  bool all_can = true;
  for (const auto& peer : peers) all_can = peer->gpu_->reads(gpu_) && all_can;
  if (!all_can) leave_on_host();
}

void GpuPartialStatistics::leave_on_host() {
  if (copy()) return;
  // A copy between GPUs might take the same broken way, so the GPU copies its own values.
  gpu_->write_messages_to_host();
  message_.on_host = gpu_->host_memory(doubles_);
  gpu_->stream()->copy(copy(), values(), doubles_ * sizeof(double));
  written();
}

const double* GpuPartialStatistics::read_by(Gpu* reader, const Scratch& scratch) const {
  if (message_.written) return reader->reads(gpu_) ? values() : copy();
  double* near = scratch(doubles_);
  reader->stream()->copy(near, values(), doubles_ * sizeof(double));
  return near;
}

PartialStatistics GpuPartialStatistics::wait_for_copy() const {
  wait();
  return {count_, {copy(), copy() + doubles_}};
}

}  // namespace gluon_syncbn::cuda

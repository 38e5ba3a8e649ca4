#include "cuda/partial_statistics.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace gluon_syncbn::cuda {

GpuPartialStatistics::GpuPartialStatistics(Gpu* gpu, const PartialStatistics& statistics)
    : gpu_(gpu),
      message_{gpu->host_memory(statistics.values.size()), {}, {}},
      doubles_(statistics.values.size()),
      count_(statistics.count) {
  std::copy(statistics.values.begin(), statistics.values.end(), values());
}

void GpuPartialStatistics::let_read(const std::vector<GpuPartialStatisticsPtr>& peers) const {
  bool all_can = true;
  for (const auto& peer : peers) all_can = peer->gpu_->reads(gpu_) && all_can;
  if (!all_can) leave_on_host();
}

void GpuPartialStatistics::leave_on_host() const {
  if (copy()) return;
  // A copy between GPUs might take the same broken way, so the GPU copies its own values.
  gpu_->write_messages_to_host();
  message_.on_host = gpu_->host_memory(doubles_);
  gpu_->stream()->copy(copy(), values(), doubles_ * sizeof(double));
  written();
}

const double* GpuPartialStatistics::read_by(Gpu* reader, const Room& room) const {
  if (message_.written) return reader->reads(gpu_) ? values() : copy();
  double* near = room(doubles_);
  reader->stream()->copy(near, values(), doubles_ * sizeof(double));
  return near;
}

std::string GpuPartialStatistics::error() const {
  if (!message_.written) return "";
  try {
    message_.written->synchronize();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

void GpuPartialStatistics::copy_to_host(Then then) const {
  try {
    leave_on_host();
  } catch (const std::exception& error) {
    return then({}, error.what());
  }
  gpu_->when_reached(message_.written,
                     [self = shared_from_this(), then](const std::string& error) mutable {
                       PartialStatistics copied;
                       if (error.empty()) {
                         copied = {self->count_, {self->copy(), self->copy() + self->doubles_}};
                       }
                       self.reset();  // the work that follows may need such memory
                       then(copied, error);
                     });
}

void copy_to_host(const std::vector<GpuPartialStatisticsPtr>& all,
                  const std::function<void(const std::vector<PartialStatistics>& copies,
                                           const std::string& error)>& then) {
  struct Arrivals {
    std::mutex mutex;
    std::vector<PartialStatistics> copies;
    std::size_t missing = 0;
    std::string error;
  };
  const auto arrivals = std::make_shared<Arrivals>();
  arrivals->missing = all.size();
  arrivals->copies.resize(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i]->copy_to_host(
        [arrivals, i, then](const PartialStatistics& copy, const std::string& error) {
          {
            const std::lock_guard<std::mutex> lock(arrivals->mutex);
            arrivals->copies[i] = copy;
            if (arrivals->error.empty()) arrivals->error = error;
            if (--arrivals->missing > 0) return;
          }
          then(arrivals->copies, arrivals->error);
        });
  }
}

}  // namespace gluon_syncbn::cuda

#ifndef GLUON_SYNCBN_CUDA_FETCH_ALL_H_
#define GLUON_SYNCBN_CUDA_FETCH_ALL_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "norm/partial_statistics.h"

namespace gluon_syncbn::cuda {

/// Calls `then` exactly once, now or later, from any thread, with copies on the host of `all`, at
/// least one pointer to GpuPartialStatistics, in this order, or with what went wrong.
template <class Pointers>
void fetch_all(
    const Pointers& all,
    std::function<void(const std::vector<PartialStatistics>& copies, const std::string& error)>
        then) {
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
    all[i]->fetch([arrivals, i, then](const PartialStatistics& copy, const std::string& error) {
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

#endif  // GLUON_SYNCBN_CUDA_FETCH_ALL_H_

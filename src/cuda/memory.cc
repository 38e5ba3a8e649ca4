#include "cuda/memory.h"

#include <algorithm>
#include <atomic>

namespace gluon_syncbn::cuda {
namespace {

std::atomic<Lender> the_lender{nullptr};

/// Rounds up, so that arrays of similar size share a pool. At most an eighth is unused.
std::size_t rounded(std::size_t doubles) {
  std::size_t power = 32;
  while (power < doubles) power *= 2;
  const std::size_t step = std::max<std::size_t>(32, power / 16);
  return (doubles + step - 1) / step * step;
}

}  // namespace

void set_lender(Lender lender) { the_lender = lender; }

Pool<Memory>::Lease Memories::take(Memory::Place place, std::size_t doubles) {
  const std::size_t size = rounded(doubles);
  Pool<Memory>* pool = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    pool = &pools_[{place, size}];
  }
  return pool->take([&] { return allocate(place, size * sizeof(double)); });
}

std::unique_ptr<Memory> Memories::allocate(Memory::Place place, std::size_t bytes) {
  const auto get = [&] {
    // MXNet allocates under a lock that it also holds while it launches kernels of NCCL
    // (kvstore_nccl.h). An allocation between two of these kernels could wait for the first kernel,
    // which waits for the second one.
    if (const Lender lender = the_lender) {
      const OnDevice on_device(stream_->ordinal());
      if (auto lent = lender(place, index_, bytes)) {
        return std::make_unique<Memory>(place, stream_->ordinal(), bytes, std::move(lent));
      }
    }
    return std::make_unique<Memory>(place, stream_->ordinal(), bytes);
  };
  try {
    return get();
  } catch (const OutOfMemory&) {
    give_back_free(place);
  }
  return get();
}

void Memories::give_back_free(Memory::Place place) {
  std::vector<std::unique_ptr<Memory>> free;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [of, pool] : pools_) {
      if (of.first != place) continue;
      for (auto& memory : pool.clear()) free.push_back(std::move(memory));
    }
  }
  // Kernels may still use the memory.
  if (!free.empty()) stream_->synchronize();
}

}  // namespace gluon_syncbn::cuda

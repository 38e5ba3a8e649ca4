#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/runtime.h"

namespace gluon_syncbn::cuda {

/// Returns memory of the context gpu(index), or pinned memory, from MXNet's pool; null if the pool
/// has none left. This library asks it before CUDA, and holds no lock meanwhile.
using Lender = std::shared_ptr<void> (*)(Memory::Place place, int index, std::size_t bytes);
void set_lender(Lender lender);

/// Objects that are leased again after a lease ends, so that a second equal step makes no object. A
/// pool is never destroyed, because leases may outlive everything else.
template <class T>
class Pool {
 public:
  struct Return {
    Pool* pool = nullptr;
    void operator()(T* thing) const {
      const std::lock_guard<std::mutex> lock(pool->mutex_);
      pool->free_.emplace_back(thing);
    }
  };
  using Lease = std::unique_ptr<T, Return>;

  template <class Make>
  Lease take(const Make& make) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (free_.empty()) {
      lock.unlock();
      return Lease(make().release(), {this});
    }
    Lease lease(free_.back().release(), {this});
    free_.pop_back();
    return lease;
  }

  /// Returns the objects that are not leased, and forgets them.
  std::vector<std::unique_ptr<T>> clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(free_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
};

/// The memory of one GPU context, by place and size.
class Memories {
 public:
  /// `stream` has all work that uses the memory.
  Memories(int index, Stream* stream) : index_(index), stream_(stream) {}

  /// Memory for at least so many doubles. Throws OutOfMemory.
  Pool<Memory>::Lease take(Memory::Place place, std::size_t doubles);
  /// New memory, which no work uses yet. Throws OutOfMemory.
  std::unique_ptr<Memory> allocate(Memory::Place place, std::size_t bytes);

 private:
  void give_back_free(Memory::Place place);

  const int index_;
  Stream* const stream_;
  std::mutex mutex_;                                                     // may be taken last
  std::map<std::pair<Memory::Place, std::size_t>, Pool<Memory>> pools_;  // by size
};

}  // namespace gluon_syncbn::cuda

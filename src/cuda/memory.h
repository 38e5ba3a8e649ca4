#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/runtime.h"

namespace gluon_syncbn::cuda {

/// Lends memory of the context gpu(index), or pinned memory, from MXNet's pool. Returns null if the
/// pool has no memory left. Memories asks it before CUDA, and holds no lock during the call.
using Lender = std::shared_ptr<void> (*)(Memory::Place place, int index, std::size_t bytes);
/// Sets the lender of all contexts; operator/property.cc calls it once.
void set_lender(Lender lender);

/// Keeps objects for reuse. The end of a lease returns the object, so an equal second step makes no
/// object. A pool must outlive its leases.
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

  /// Removes the objects that are not leased, and returns them.
  std::vector<std::unique_ptr<T>> clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(free_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
};

/// Leases memory of one GPU context, and pinned memory. Each place and size has a pool.
class Memories {
 public:
  /// Work on `stream` uses the memory of the GPU, which it may still do when a lease ends. A lease
  /// of pinned memory must outlast all work that uses it.
  Memories(int index, Stream* stream) : index_(index), stream_(stream) {}

  /// Leases memory for at least `doubles` numbers. Throws OutOfMemory.
  Pool<Memory>::Lease take(Memory::Place place, std::size_t doubles);

 private:
  std::unique_ptr<Memory> allocate(Memory::Place place, std::size_t bytes);
  void give_back_free(Memory::Place place);

  const int index_;
  Stream* const stream_;
  // A thread that holds this mutex locks only mutexes of pools.
  std::mutex mutex_;
  std::map<std::pair<Memory::Place, std::size_t>, Pool<Memory>> pools_;  // by place and doubles
};

}  // namespace gluon_syncbn::cuda

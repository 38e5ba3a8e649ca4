#ifndef GLUON_SYNCBN_CUDA_GPU_H_
#define GLUON_SYNCBN_CUDA_GPU_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/runtime.h"

namespace gluon_syncbn::cuda {

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

/// Blocks the calling thread until the work before `event` is done, and sleeps only if that takes
/// long. Throws as Event::synchronize().
void wait_until_reached(const Event& event);

/// Returns memory of the context gpu(index), or pinned memory, from MXNet's pool; null if the pool
/// has none left. This library asks it before CUDA, and holds no lock meanwhile.
using Lender = std::shared_ptr<void> (*)(Memory::Place place, int index, std::size_t bytes);
void set_lender(Lender lender);

/// The stream, the memory and the thread of this library on one GPU context.
class Gpu {
 public:
  using Done = std::function<void(const std::string& error)>;

  /// Returns the object of the context gpu(index), which lives as long as the process. Throws Error
  /// if the machine has no such GPU. For tests, contexts share GPUs if the environment has
  /// GLUON_SYNCBN_SHARE_GPUS.
  static Gpu& of(int index);

  Gpu(int index, int ordinal);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Stream* stream() { return &stream_; }

  /// Memory for at least so many doubles. A lease may end while work on the stream still uses the
  /// memory, because only later work of this stream leases it again.
  Pool<Memory>::Lease memory(std::size_t doubles) { return take(Memory::Place::kDevice, doubles); }

  /// Memory of the host that all GPUs can read and write. A lease must not end before the work that
  /// uses the memory, because another lease may begin at once.
  Pool<Memory>::Lease host_memory(std::size_t doubles) {
    return take(Memory::Place::kHost, doubles);
  }

  /// Memory that kernels of other GPUs may read, a second place for GPUs that cannot, and an event
  /// after the kernels that write both.
  struct Message {
    Pool<Memory>::Lease memory;
    Pool<Memory>::Lease on_host;     ///< null if all GPUs can read the memory
    std::shared_ptr<Event> written;  ///< null if the host has written it
  };
  Message message(std::size_t doubles);

  /// Whether kernels of this GPU can read memory of `owner`. The first call for a GPU enables peer
  /// access if that is possible, and checks it. Throws Error if the check takes longer than the
  /// timeout of devices.
  bool reads(Gpu* owner);
  /// Later messages of this GPU have a second place.
  void write_messages_to_host() { messages_to_host_ = true; }

  /// Throws Error if a CUDA graph records the work of the stream.
  void require_no_capture() const;

  /// Runs `task`, which does not throw, on the thread of this context, in the order of the calls.
  void post(std::function<void()> task);
  /// Calls `done` there after all work that is on the stream now. Does not throw, and calls `done`
  /// in every case.
  void when_done(Done done);

 private:
  enum class Reading : char { kNotTried, kWorks, kFails, kHangs };
  Pool<Memory>::Lease take(Memory::Place place, std::size_t doubles);
  std::unique_ptr<Memory> allocate(Memory::Place place, std::size_t bytes);
  void give_back_free(Memory::Place place);
  Reading try_reading(Gpu* owner);
  Reading read_once(Gpu* owner);
  bool reads_rightly(Gpu* owner);
  std::shared_ptr<Event> event();
  void run();

  const int index_;
  const int ordinal_;
  const bool has_peer_access_;
  std::atomic<bool> messages_to_host_;
  std::vector<std::atomic<Reading>> reading_;  // of each GPU
  Stream stream_;
  std::mutex memories_mutex_;                                               // may be taken last
  std::map<std::pair<Memory::Place, std::size_t>, Pool<Memory>> memories_;  // by size
  Pool<Event> events_;
  std::mutex mutex_;  // of the next three
  bool ends_ = false;
  std::deque<std::function<void()>> tasks_;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_GPU_H_

#ifndef GLUON_SYNCBN_CUDA_GPU_H_
#define GLUON_SYNCBN_CUDA_GPU_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
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

/// Things that are given back for the next who needs one, so that a step like the last one makes
/// none. Never destroyed, as what comes from it may outlive everything else.
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
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        Lease lease(free_.back().release(), {this});
        free_.pop_back();
        return lease;
      }
    }
    return Lease(make().release(), {this});
  }

  /// What nobody has taken.
  std::vector<std::unique_ptr<T>> clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(free_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
};

/// Memory that begins as zeros. Where it grows, the old memory stays for the kernels that use it.
class ZeroedMemory {
 public:
  using Allocate = std::function<std::unique_ptr<Memory>(std::size_t bytes)>;

  void* at_least(std::size_t bytes, Stream* stream, const Allocate& allocate);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Memory>> memories_;
};

/// Memory of the context gpu(index), or of the host for it, from the pool of the host program; null
/// if that has none left. Asked before CUDA, and without any lock of this library.
using Lender = std::shared_ptr<void> (*)(Memory::Place place, int index, std::size_t bytes);
void set_lender(Lender lender);

/// What this library has on one GPU context: a stream of its own, memory, and a thread that tells
/// when work is done.
class Gpu {
 public:
  using Done = std::function<void(const std::string& error)>;

  /// That of the context gpu(index), for as long as the process lives. Throws Error where the
  /// machine has no such GPU. For tests, GLUON_SYNCBN_SHARE_GPUS in the environment lets contexts
  /// share GPUs where there are fewer of these.
  static Gpu& of(int index);

  Gpu(int index, int ordinal);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Stream* stream() { return &stream_; }

  /// Memory for at least so many doubles. What is given back is used again by later work of this
  /// stream only, and so may be given back while earlier work is not done.
  Pool<Memory>::Lease memory(std::size_t doubles) { return take(Memory::Place::kDevice, doubles); }

  /// Memory of the host that all GPUs can read and write. What is given back is used again at once:
  /// no earlier work may still use it.
  Pool<Memory>::Lease host_memory(std::size_t doubles) {
    return take(Memory::Place::kHost, doubles);
  }

  /// Memory that kernels of other GPUs may read, a second place for those that cannot, and an event
  /// for what writes both.
  struct Message {
    Pool<Memory>::Lease memory;
    Pool<Memory>::Lease on_host;     ///< null if all can read the first place
    std::shared_ptr<Event> written;  ///< null if the host has written it
  };
  Message message(std::size_t doubles);

  /// Whether kernels of this GPU can read memory of `owner`. The first call for a GPU enables that
  /// where it is possible, and checks what they read. Throws Error if that takes longer than the
  /// timeout of devices.
  bool reads(Gpu* owner);
  /// From now on messages have a second place.
  void write_messages_to_host() { messages_to_host_ = true; }

  /// As Workspace says.
  std::uint32_t* counters(std::size_t number);
  /// Throws Error if a CUDA graph would record what the stream is given next.
  void require_no_capture() const;

  /// Runs `task`, which does not throw, on the thread of this context, in the order of the calls.
  void post(std::function<void()> task);
  /// Calls `done` there after all work that is on the stream now. Does not throw, and calls `done`
  /// in every case.
  void when_done(Done done);
  /// Calls `done` there after all work that precedes `event`; null: all work on the stream by then.
  void when_reached(std::shared_ptr<Event> event, Done done);

 private:
  enum class Reading : char { kNotTried, kWorks, kFails, kHangs };
  Pool<Memory>::Lease take(Memory::Place place, std::size_t doubles);
  std::unique_ptr<Memory> allocate(Memory::Place place, std::size_t bytes);
  void give_back_free(Memory::Place place);
  Reading try_reading(Gpu* owner);
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
  ZeroedMemory counters_;
  std::mutex mutex_;  // of what follows
  bool ends_ = false;
  std::deque<std::function<void()>> tasks_;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_GPU_H_

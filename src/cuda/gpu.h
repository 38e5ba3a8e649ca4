#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cuda/memory.h"
#include "cuda/runtime.h"

namespace gluon_syncbn::cuda {

/// Blocks the calling thread until the work before `event` is done, and sleeps only if that takes
/// long. Throws as Event::synchronize().
void wait_until_reached(const Event& event);

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
  Pool<Memory>::Lease memory(std::size_t doubles) {
    return memories_.take(Memory::Place::kDevice, doubles);
  }

  /// Memory of the host that all GPUs can read and write. A lease must not end before the work that
  /// uses the memory, because another lease may begin at once.
  Pool<Memory>::Lease host_memory(std::size_t doubles) {
    return memories_.take(Memory::Place::kHost, doubles);
  }

  /// Memory that kernels of other GPUs may read, a second place for GPUs that cannot, and an event
  /// after the kernels that write both.
  struct MessageMemory {
    Pool<Memory>::Lease memory;
    Pool<Memory>::Lease on_host;     ///< null if all GPUs can read the memory
    std::shared_ptr<Event> written;  ///< null if the host has written it
  };
  MessageMemory message(std::size_t doubles);

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
  Memories memories_;
  Pool<Event> events_;
  std::mutex mutex_;  // of the next three
  bool ends_ = false;
  std::deque<std::function<void()>> tasks_;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace gluon_syncbn::cuda

#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "cuda/memory.h"
#include "cuda/runtime.h"

namespace gluon_syncbn::cuda {

/// Blocks the calling thread until the work before `event` is done, or for `limit` seconds (0: no
/// limit). Returns whether it is done. The thread sleeps only if the work takes long. Throws the
/// error of that work.
bool wait_until_reached(const Event& event, double limit = 0);

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
  /// Whether the machine has other GPUs, and so perhaps NCCL.
  bool has_peers() const { return has_peers_; }

  /// Leases memory for at least `doubles` numbers. A lease may end while work on the stream still
  /// uses the memory, because only later work of this stream leases it again.
  Pool<Memory>::Lease memory(std::size_t doubles) {
    return memories_.take(Memory::Place::kDevice, doubles);
  }

  /// Leases memory of the host that all GPUs can read and write. A lease must not end before the
  /// work that uses the memory, because another lease may begin at once.
  Pool<Memory>::Lease host_memory(std::size_t doubles) {
    return memories_.take(Memory::Place::kHost, doubles);
  }

  std::shared_ptr<Event> event();

  /// Blocks the calling thread until the work of this GPU before `event` is done. Throws the error
  /// of that work, or Error after the timeout of devices.
  void wait_for(const Event& event) const;

  /// Queues `task`, which must not throw. The context's thread runs tasks in the order of calls.
  void post(std::function<void()> task);
  /// Calls `done` on the same thread after all work that is on the stream now, with the error of
  /// that work. Does not throw, and calls `done` in every case.
  void when_done(Done done);

 private:
  void run();

  const int index_;
  const int ordinal_;
  const bool has_peers_;
  Stream stream_;
  Memories memories_;
  Pool<Event> events_;
  std::mutex mutex_;  // guards the next two members
  bool ends_ = false;
  std::deque<std::function<void()>> tasks_;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace gluon_syncbn::cuda

#pragma once

#include <chrono>
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

/// The stream, the memory and the thread of this library on one GPU context.
class Gpu {
 public:
  using Done = std::function<void(const std::string& error)>;

  /// Returns the object of the context gpu(index), which lives as long as the process. Throws Error
  /// if the machine has no such GPU.
  static Gpu& of(int index);
  /// For tests: whether contexts that the machine has not share its GPUs. Returns whether they did.
  static bool share(bool share);

  Gpu(int index, int ordinal);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Stream* stream() { return &stream_; }

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

  // The context's thread calls everything below. It calls each function once, and in every case.

  /// Calls `task`. Tasks begin in the order of calls.
  void post(std::function<void()> task);
  /// Calls `done` after the work before `event`, which this GPU has recorded. It gets the error of
  /// that work, or an error if the work takes more than `limit` seconds (0: no limit).
  void when_reached(const std::shared_ptr<Event>& event, Done done, double limit = 0);
  /// Calls `done` after all work that is on the stream now, with the error of that work.
  void when_done(Done done);

 private:
  using Clock = std::chrono::steady_clock;
  struct Wait {
    std::shared_ptr<Event> event;
    Done done;
    double limit;
    Clock::time_point begin;
  };

  void run();
  bool run_task();
  bool end_wait();
  bool pause(Clock::time_point idle_since);

  const int index_;
  const int ordinal_;
  Stream stream_;
  Memories memories_;
  Pool<Event> events_;
  std::deque<Wait> waits_;  // of the context's thread alone
  std::mutex mutex_;        // guards the next two members
  bool ends_ = false;
  std::deque<std::function<void()>> tasks_;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace gluon_syncbn::cuda

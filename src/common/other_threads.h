#pragma once

#include <chrono>
#include <vector>

namespace gluon_syncbn {

/// Threads count as idle if at most this share of the looks at them found a busy one.
inline constexpr double kBusyShare = 0.2;

/// The number of the calling thread, as in /proc. That of the main thread is the process's.
int thread_id();

/// Whether another thread of this process is running, ready to run or reading a disk. True if the
/// system has no /proc.
bool any_other_thread_is_busy();

/// Returns the threads of this process, except `others`, that may go on although no thread of this
/// process wakes them. Without /proc it returns the main thread.
std::vector<int> threads_that_may_go_on(const std::vector<int>& others);

/// Finds out whether all threads of this process except the calling one are idle.
class OtherThreads {
 public:
  /// Looks at the threads once; the caller repeats this every few milliseconds. Returns true at the
  /// end of a second in which few calls found a busy thread: some threads only look for work now
  /// and then. Always returns false if the system has no /proc.
  bool observe_idle();

  /// Starts a new second.
  void forget();

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point since_ = Clock::now();
  int observations_ = 0;
  int busy_ = 0;
};

}  // namespace gluon_syncbn

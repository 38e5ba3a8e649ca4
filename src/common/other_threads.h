#pragma once

#include <chrono>

namespace gluon_syncbn {

/// Finds out whether all threads of this process except the calling one are idle.
class OtherThreads {
 public:
  /// Looks at the threads once; the caller repeats this every few milliseconds. A thread is busy if
  /// it is running, ready to run or reading a disk. Returns true at the end of a second in which
  /// few calls found a busy thread: some threads only look for work now and then. Always returns
  /// false if the system has no /proc.
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

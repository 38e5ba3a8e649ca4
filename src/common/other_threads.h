#ifndef GLUON_SYNCBN_COMMON_OTHER_THREADS_H_
#define GLUON_SYNCBN_COMMON_OTHER_THREADS_H_

#include <chrono>

namespace gluon_syncbn {

/// Tells whether the threads of this process but the calling one have nothing to do.
class OtherThreads {
 public:
  /// To be called every few milliseconds. True at the end of each second in which hardly any call
  /// found one of them running, ready to run or reading a disk: threads that only look for work now
  /// and then do not count. Always false where the system does not tell.
  bool observe_idle();

  /// Begins a new second.
  void forget();

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point since_ = Clock::now();
  int observations_ = 0;
  int busy_ = 0;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_COMMON_OTHER_THREADS_H_

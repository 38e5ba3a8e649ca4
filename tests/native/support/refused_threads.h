#ifndef GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_REFUSED_THREADS_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_REFUSED_THREADS_H_

namespace gluon_syncbn::tests {

/// Simulates the limit on processes: as long as this object lives, the thread that made it can
/// start only `allowed` more threads.
class RefusedThreads {
 public:
  explicit RefusedThreads(int allowed);
  ~RefusedThreads();
  RefusedThreads(const RefusedThreads&) = delete;
  RefusedThreads& operator=(const RefusedThreads&) = delete;
};

/// The number of threads that the calling thread has started.
int started_threads();

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_REFUSED_THREADS_H_

#ifndef GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_REFUSED_THREADS_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_REFUSED_THREADS_H_

namespace gluon_syncbn::tests {

/// As at the limit on processes: for as long as this lives, the thread that made it can start
/// `allowed` more threads and no other.
class RefusedThreads {
 public:
  explicit RefusedThreads(int allowed);
  ~RefusedThreads();
  RefusedThreads(const RefusedThreads&) = delete;
  RefusedThreads& operator=(const RefusedThreads&) = delete;
};

/// How many threads the calling thread has started.
int started_threads();

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_REFUSED_THREADS_H_

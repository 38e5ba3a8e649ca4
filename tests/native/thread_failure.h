#ifndef GLUON_SYNCBN_TESTS_NATIVE_THREAD_FAILURE_H_
#define GLUON_SYNCBN_TESTS_NATIVE_THREAD_FAILURE_H_

namespace gluon_syncbn::tests {

/// While it lives, the system starts no threads, as if the user's limit on processes was reached.
class NoThreads {
 public:
  NoThreads();
  ~NoThreads();
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;
};

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_THREAD_FAILURE_H_

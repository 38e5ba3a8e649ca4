#pragma once

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

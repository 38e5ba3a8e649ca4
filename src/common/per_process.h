#pragma once

#include <pthread.h>

#include <atomic>

namespace gluon_syncbn {

/// One object per process. It is never destroyed, because threads and operators may outlive static
/// destruction.
///
/// A forked child gets a new object. A thread of the parent may have held the mutex of the old one,
/// and does not exist in the child to release it. So a use of the old object could wait forever.
template <class T>
class PerProcess {
 public:
  static T& instance() {
    static const bool registered = pthread_atfork(nullptr, nullptr, &renew) == 0;
    static_cast<void>(registered);
    return *object().load();
  }

 private:
  static std::atomic<T*>& object() {
    static std::atomic<T*>& object = *new std::atomic<T*>(new T());
    return object;
  }
  static void renew() { object() = new T(); }
};

}  // namespace gluon_syncbn

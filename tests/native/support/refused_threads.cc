#include "support/refused_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>
#include <climits>

namespace gluon_syncbn::tests {
namespace {

thread_local int allowed_threads = INT_MAX;
thread_local int started = 0;

}  // namespace

RefusedThreads::RefusedThreads(int allowed) { allowed_threads = allowed; }
RefusedThreads::~RefusedThreads() { allowed_threads = INT_MAX; }

int started_threads() { return started; }

}  // namespace gluon_syncbn::tests

/// Replaces the function of the system, also for std::thread.
extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  using gluon_syncbn::tests::allowed_threads;
  if (allowed_threads <= 0) return EAGAIN;
  if (allowed_threads < INT_MAX) --allowed_threads;
  ++gluon_syncbn::tests::started;
  static const auto create =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, run, argument);
}

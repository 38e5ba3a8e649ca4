#include "thread_failure.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>

namespace {

std::atomic<bool> no_threads{false};

}  // namespace

// Stands in front of the system's for all that the program is linked to, std::thread included.
extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return no_threads ? EAGAIN : create(thread, attributes, start, argument);
}

namespace gluon_syncbn::tests {

NoThreads::NoThreads() { no_threads = true; }
NoThreads::~NoThreads() { no_threads = false; }

}  // namespace gluon_syncbn::tests

#include "mxnet/fork.h"

#include <pthread.h>

#include <cstdlib>
#include <iostream>
#include <new>

#include "mxnet/c_api.h"

namespace gluon_syncbn::mxnet {
namespace {

void wait_for_all() noexcept {
  if (api().NDArrayWaitAll() == 0) return;
  std::cerr << "gluon_syncbn: error: the process ends because it forks before this error was read: "
            << api().GetLastError() << std::endl;
  std::abort();
}

}  // namespace

// Before a fork, MXNet ends the threads of custom operators and then waits for all operations. One
// that calls a custom operator in between would wait for ever, or crash. MXNet has registered its
// handler before this one, so that this one is called first.
void wait_before_forks() {
  static const int status = pthread_atfork(&wait_for_all, nullptr, nullptr);
  if (status != 0) throw std::bad_alloc();  // its only error
}

}  // namespace gluon_syncbn::mxnet

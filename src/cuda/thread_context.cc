#include "cuda/thread_context.h"

#include <dlfcn.h>

namespace gluon_syncbn::cuda {
namespace {

/// Functions of the driver, which only machines with a GPU have.
struct Driver {
  int (*get)(void** context) = nullptr;
  int (*set)(void* context) = nullptr;

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto find = [library](const char* name) {
      void* function = dlsym(RTLD_DEFAULT, name);
      return function || !library ? function : dlsym(library, name);
    };
    get = reinterpret_cast<decltype(get)>(find("cuCtxGetCurrent"));
    set = reinterpret_cast<decltype(set)>(find("cuCtxSetCurrent"));
  }
};

const Driver& driver() {
  static const Driver driver;
  return driver;
}

}  // namespace

void* thread_context() {
  void* context = nullptr;
  const auto get = driver().get;
  return get && get(&context) == 0 ? context : nullptr;
}

bool set_thread_context(void* context) {
  const auto set = driver().set;
  return set && set(context) == 0;
}

}  // namespace gluon_syncbn::cuda

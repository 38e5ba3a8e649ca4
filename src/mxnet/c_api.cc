#include "mxnet/c_api.h"

#include <dlfcn.h>

#include <initializer_list>
#include <optional>
#include <string>

#include "common/error.h"

namespace gluon_syncbn::mxnet {
namespace {

std::optional<Api>& table() {
  static std::optional<Api> api;
  return api;
}

template <class Function>
bool find_if_there(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

/// The first name is the one in MXNet 1.9.1. The second name, if any, is the one in MXNet 2.
template <class Function>
void find(void* library, std::initializer_list<const char*> names, Function* function) {
  for (const char* name : names) {
    if (find_if_there(library, name, function)) return;
  }
  throw Error(std::string("libmxnet has no function ") + *names.begin() +
              "; gluon_syncbn needs MXNet 1.9.1 or 2");
}

}  // namespace

const Api& api() {
  if (!table()) throw Error("gluon_syncbn was not initialized: import gluon_syncbn first");
  return *table();
}

void load_api(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (!library) {
    throw Error(std::string("libmxnet is not loaded from '") + path + "': " + dlerror());
  }
  Api loaded{};
  loaded.library = library;
  find(library, {"MXGetLastError"}, &loaded.GetLastError);
  find(library, {"MXCustomOpRegister"}, &loaded.CustomOpRegister);
  find(library, {"MXEnginePushAsyncND"}, &loaded.EnginePushAsyncND);
  find(library, {"MXNDArrayCreateEx64", "MXNDArrayCreate64"}, &loaded.NDArrayCreate64);
  find(library, {"MXNDArrayDetach"}, &loaded.NDArrayDetach);
  find(library, {"MXNDArrayFree"}, &loaded.NDArrayFree);
  find(library, {"MXNDArrayGetData"}, &loaded.NDArrayGetData);
  find(library, {"MXNDArrayGetDType"}, &loaded.NDArrayGetDType);
  find(library, {"MXNDArrayGetShapeEx", "MXNDArrayGetShape"}, &loaded.NDArrayGetShape);
  find(library, {"MXNDArrayWaitAll"}, &loaded.NDArrayWaitAll);
  find(library, {"MXNDArrayWaitToRead"}, &loaded.NDArrayWaitToRead);
  find_if_there(library, "omp_get_max_threads", &loaded.omp_get_max_threads);
  find_if_there(library, "omp_get_num_procs", &loaded.omp_get_num_procs);
  table() = loaded;
}

void check(int status, const char* function) {
  if (status != 0) throw Error(std::string(function) + " failed: " + api().GetLastError());
}

}  // namespace gluon_syncbn::mxnet

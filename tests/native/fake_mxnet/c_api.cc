// MXNet's C functions that the library looks up, in the program itself: it registers with
// gluon_syncbn_register(nullptr, ...), and dlopen(nullptr) is the program.

#include "mxnet/c_api.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "fake_mxnet/custom_op.h"
#include "fake_mxnet/engine.h"
#include "fake_mxnet/ndarray.h"

#define FAKE_MXNET_EXPORT extern "C" __attribute__((visibility("default")))

using namespace gluon_syncbn;
using namespace gluon_syncbn::fake_mxnet;

namespace {

thread_local std::string the_last_error;

template <class Function>
int guarded(const Function& function) {
  try {
    function();
    return 0;
  } catch (const std::exception& error) {
    the_last_error = error.what();
    return -1;
  }
}

NDArray& array_of(void* handle) { return *static_cast<NDArray*>(handle); }

std::vector<VariablePtr> variables_of(void** handles, int number) {
  std::vector<VariablePtr> variables;
  for (int i = 0; i < number; ++i) variables.push_back(array_of(handles[i]).variable());
  return variables;
}

/// Doubles are memory that the library keeps for its pools.
bool is_lent(const NDArray& array) { return array.dtype() == mxnet::kFloat64; }

std::atomic<long> the_handles{0};

}  // namespace

void* gluon_syncbn::fake_mxnet::make_handle(const NDArray& array) {
  if (!is_lent(array)) ++the_handles;
  return new NDArray(array);
}

long gluon_syncbn::fake_mxnet::handles_given_out() { return the_handles; }

int gluon_syncbn::fake_mxnet::engine_arguments() {
  static const char* const chosen = std::getenv("FAKE_MXNET_ENGINE_ARGUMENTS");
  static const int arguments = chosen ? std::atoi(chosen) : 3;
  return arguments;
}

FAKE_MXNET_EXPORT const char* MXGetLastError() { return the_last_error.c_str(); }

FAKE_MXNET_EXPORT int MXCustomOpRegister(const char* /*op_type*/, mxnet::PropertyCreator creator) {
  return guarded([&] {
    Engine::get();  // MXNet's handlers of forks are there before the library's
    register_custom_op(creator);
  });
}

FAKE_MXNET_EXPORT int MXEnginePushAsyncND(mxnet::EngineFunction function, void* param,
                                          mxnet::ParamDeleter deleter, const void* context,
                                          void** const_arrays, int num_const, void** mutable_arrays,
                                          int num_mutable, const void* property, int /*priority*/,
                                          const char* /*name*/, bool wait) {
  return guarded([&] {
    // Deleted when the engine forgets the operation, or here if it is not even pushed.
    const std::shared_ptr<void> owned(param, deleter ? deleter : [](void*) {});
    auto run = [function, owned](const mxnet::OnComplete& on_complete) {
      mxnet::OnComplete copy = on_complete;
      if (engine_arguments() == 3) {
        const auto untyped = reinterpret_cast<mxnet::Callback>(function);
        reinterpret_cast<void (*)(void*, void*, void*)>(untyped)(nullptr, &copy, owned.get());
        return;
      }
      bool begun = false;
      const auto begin = [](void*, void* flag, const void*) { *static_cast<bool*>(flag) = true; };
      mxnet::OnComplete on_start{begin, nullptr, &begun};
      function(nullptr, &on_start, &copy, owned.get());
      if (!begun) std::abort();  // MXNet would wait for no event of another stream
    };
    Engine::get().push(std::move(run), *static_cast<const mxnet::Context*>(context),
                       variables_of(const_arrays, num_const),
                       variables_of(mutable_arrays, num_mutable),
                       *static_cast<const mxnet::EngineProperty*>(property), wait);
  });
}

FAKE_MXNET_EXPORT int MXNDArrayCreateEx64(const std::int64_t* shape, int ndim, int dev_type,
                                          int dev_id, int /*delay_alloc*/, int dtype, void** out) {
  return guarded(
      [&] { *out = make_handle(NDArray(Shape(shape, shape + ndim), dtype, {dev_type, dev_id})); });
}

FAKE_MXNET_EXPORT int MXNDArrayDetach(void* handle, void** out) {
  return guarded([&] { *out = make_handle(NDArray(array_of(handle))); });
}

FAKE_MXNET_EXPORT int MXNDArrayFree(void* handle) {
  if (!is_lent(array_of(handle))) --the_handles;
  return guarded([&] { std::unique_ptr<NDArray>(static_cast<NDArray*>(handle)); });
}

FAKE_MXNET_EXPORT int MXNDArrayGetData(void* handle, void** data) {
  *data = array_of(handle).data();
  return 0;
}

FAKE_MXNET_EXPORT int MXNDArrayGetDType(void* handle, int* dtype) {
  *dtype = array_of(handle).dtype();
  return 0;
}

/// The dimensions lie in a buffer of the calling thread, which its next call overwrites.
FAKE_MXNET_EXPORT int MXNDArrayGetShapeEx(void* handle, int* ndim, const int** shape) {
  thread_local Shape buffer;
  buffer = array_of(handle).shape();
  *ndim = static_cast<int>(buffer.size());
  *shape = buffer.data();
  return 0;
}

FAKE_MXNET_EXPORT int MXNDArrayWaitAll() {
  return guarded([] { Engine::get().wait_for_all(); });
}

FAKE_MXNET_EXPORT int MXNDArrayWaitToRead(void* handle) {
  return guarded([&] { Engine::get().wait_for(array_of(handle).variable()); });
}

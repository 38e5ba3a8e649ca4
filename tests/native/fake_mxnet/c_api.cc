// The stand-in's functions of MXNet's C interface (c_api.cc, c_api_ndarray.cc): those that the
// adapter looks up, and those that a frontend calls to make arrays, run the operator and go
// backward.

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fake_mxnet/custom_op.h"
#include "fake_mxnet/engine.h"
#include "fake_mxnet/imperative.h"
#include "fake_mxnet/ndarray.h"
#include "fake_mxnet/types.h"

#define HOST_EXPORT extern "C" __attribute__((visibility("default")))

using namespace gluon_syncbn::host;

namespace {

thread_local std::string the_last_error;

/// c_api_error.h: a std::exception becomes -1 and the message of MXGetLastError.
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

NDArray* array_of(void* handle) { return static_cast<NDArray*>(handle); }

std::vector<NDArray*> arrays_of(void** handles, std::size_t number) {
  std::vector<NDArray*> arrays;
  for (std::size_t i = 0; i < number; ++i) arrays.push_back(array_of(handles[i]));
  return arrays;
}

std::vector<Variable*> variables_of(void** handles, int number) {
  std::vector<Variable*> variables;
  for (int i = 0; i < number; ++i) variables.push_back(array_of(handles[i])->variable());
  return variables;
}

void require_size(const NDArray& array, std::size_t size) {
  if (array.size() != size) throw Error("Memory size do not match");
}

// MXImperativeInvoke wants the handle of an operator; there is one.
constexpr const char* kCustom = "Custom";

}  // namespace

HOST_EXPORT const char* MXGetLastError() { return the_last_error.c_str(); }

HOST_EXPORT int MXCustomOpRegister(const char* op_type, PropertyCreator creator) {
  return guarded([&] { register_custom_op(op_type, creator); });
}

HOST_EXPORT int MXEnginePushAsyncND(void (*function)(void*, void*, void*), void* param,
                                    void (*deleter)(void*), void* context, void** const_arrays,
                                    int num_const, void** mutable_arrays, int num_mutable,
                                    void* property, int /*priority*/, const char* /*name*/,
                                    bool wait) {
  return guarded([&] {
    // Deleted when the engine forgets the operation, or here where it is not even pushed.
    const std::shared_ptr<void> owned(param, deleter ? deleter : [](void*) {});
    auto run = [function, owned](const RunContext& run_context, const OnComplete& on_complete) {
      RunContext run_context_copy = run_context;
      OnComplete on_complete_copy = on_complete;
      function(&run_context_copy, &on_complete_copy, owned.get());
    };
    Engine::get().push_async(
        std::move(run), *static_cast<const Context*>(context),
        variables_of(const_arrays, num_const), variables_of(mutable_arrays, num_mutable),
        property ? *static_cast<const Property*>(property) : Property::kNormal, wait);
  });
}

HOST_EXPORT int MXNDArrayCreateEx64(const std::int64_t* shape, int ndim, int dev_type, int dev_id,
                                    int delay_alloc, int dtype, void** out) {
  return guarded([&] {
    auto array = std::make_unique<NDArray>(
        NDArray::make(Shape(shape, shape + ndim), dtype, {dev_type, dev_id}));
    if (!delay_alloc) array->chunk->data();
    *out = array.release();
  });
}

HOST_EXPORT int MXNDArrayFree(void* handle) {
  return guarded([&] { delete array_of(handle); });
}

HOST_EXPORT int MXNDArrayGetData(void* handle, void** data) {
  return guarded([&] {
    const NDArray& array = *array_of(handle);
    *data = array.is_none() ? nullptr : array.chunk->data();
  });
}

HOST_EXPORT int MXNDArrayGetDType(void* handle, int* dtype) {
  return guarded([&] {
    const NDArray& array = *array_of(handle);
    *dtype = array.is_none() ? kNoDType : array.dtype;
  });
}

HOST_EXPORT int MXNDArrayGetContext(void* handle, int* dev_type, int* dev_id) {
  return guarded([&] {
    const NDArray& array = *array_of(handle);
    *dev_type = array.is_none() ? 0 : array.context().dev_type;
    *dev_id = array.is_none() ? 0 : array.context().dev_id;
  });
}

/// The dimensions lie in a buffer of the calling thread, which its next call overwrites.
HOST_EXPORT int MXNDArrayGetShapeEx(void* handle, int* ndim, const int** shape) {
  return guarded([&] {
    thread_local std::vector<int> buffer;
    const NDArray& array = *array_of(handle);
    *ndim = 0;
    if (array.is_none()) return;
    buffer = array.shape;
    *ndim = static_cast<int>(buffer.size());
    *shape = buffer.data();
  });
}

HOST_EXPORT int MXNDArraySyncCopyFromCPU(void* handle, const void* data, std::size_t size) {
  return guarded([&] {
    require_size(*array_of(handle), size);
    array_of(handle)->copy_from_host(data);
  });
}

HOST_EXPORT int MXNDArraySyncCopyToCPU(void* handle, void* data, std::size_t size) {
  return guarded([&] {
    require_size(*array_of(handle), size);
    array_of(handle)->copy_to_host(data);
  });
}

HOST_EXPORT int MXNDArrayWaitToRead(void* handle) {
  return guarded([&] { array_of(handle)->wait_to_read(); });
}

HOST_EXPORT int MXNDArrayWaitAll() {
  return guarded([] { Engine::get().wait_for_all(); });
}

HOST_EXPORT int NNGetOpHandle(const char* name, void** op) {
  return guarded([&] {
    if (std::strcmp(name, kCustom) != 0) throw Error(std::string("no operator ") + name);
    *op = const_cast<char*>(kCustom);
  });
}

HOST_EXPORT int MXImperativeInvoke(void* /*op*/, int num_inputs, void** inputs, int* num_outputs,
                                   void*** outputs, int num_params, const char** keys,
                                   const char** values) {
  return guarded([&] {
    if (*outputs) throw Error("the stand-in makes the outputs itself");
    std::vector<std::pair<std::string, std::string>> attributes;
    for (int i = 0; i < num_params; ++i) attributes.emplace_back(keys[i], values[i]);
    const auto results =
        invoke(arrays_of(inputs, static_cast<std::size_t>(num_inputs)), attributes);
    thread_local std::vector<void*> handles;
    handles.assign(results.begin(), results.end());
    *num_outputs = static_cast<int>(handles.size());
    *outputs = handles.data();
  });
}

HOST_EXPORT int MXAutogradSetIsRecording(int value, int* before) {
  return guarded([&] { *before = set_recording(value != 0); });
}

HOST_EXPORT int MXAutogradSetIsTraining(int value, int* before) {
  return guarded([&] { *before = set_training(value != 0); });
}

HOST_EXPORT int MXAutogradMarkVariables(std::uint32_t number, void** variables,
                                        std::uint32_t* requests, void** gradients) {
  return guarded([&] {
    for (std::uint32_t i = 0; i < number; ++i) {
      mark_variable(array_of(variables[i]), static_cast<OpReq>(requests[i]),
                    array_of(gradients[i]));
    }
  });
}

HOST_EXPORT int MXAutogradBackwardEx(std::uint32_t number, void** outputs, void** output_gradients,
                                     std::uint32_t num_variables, void** /*variables*/,
                                     int retain_graph, int create_graph, int is_train,
                                     void*** /*gradients*/, int** /*storage_types*/) {
  return guarded([&] {
    if (num_variables || create_graph || !output_gradients) {
      throw Error("the stand-in goes backward to marked variables, from given gradients, once");
    }
    backward(arrays_of(outputs, number), arrays_of(output_gradients, number), retain_graph != 0,
             is_train != 0);
  });
}

/// c_api.cc, MXNotifyShutdown.
HOST_EXPORT int MXNotifyShutdown() {
  return guarded([] {
    stop_custom_ops();
    Engine::get().notify_shutdown();
    Engine::get().wait_for_all();
  });
}

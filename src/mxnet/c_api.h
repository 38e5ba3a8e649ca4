#ifndef GLUON_SYNCBN_MXNET_C_API_H_
#define GLUON_SYNCBN_MXNET_C_API_H_

// The part of MXNet's C interface (c_api.h, base.h, op_attr_types.h, ndarray.h of 1.9.1) that this
// library uses. It is looked up at run time in the libmxnet that the process has loaded, so that
// one binary serves every build of MXNet 1.9.1 and MXNet 2; what differs between these is in
// c_api.cc. One C++ class crosses this border: MXNet's exception.

#include <cstdint>
#include <stdexcept>
#include <string>

namespace dmlc {

/// What MXNet throws, and after which it goes back to the settings before a call, such as the size
/// of bulks. Other exceptions pass through it.
struct Error : std::runtime_error {
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace dmlc

namespace gluon_syncbn::mxnet {

/// Any function: MXNet casts it back to the type that its place in the list implies.
using Callback = void (*)();

struct CallbackList {
  int num_callbacks;
  Callback* callbacks;
  void** contexts;
};

using PropertyCreator = int (*)(const char* op_type, int num_kwargs, const char** keys,
                                const char** values, CallbackList* out);

enum OpReq : int { kNull = 0, kWrite = 1, kWriteInplace = 2, kAdd = 3 };

/// Of an array: dense, or one of two sparse layouts.
enum StorageType : int { kUnknownStorage = -1, kDense = 0, kRowSparse = 1, kCsr = 2 };

enum EngineProperty : int { kNormal = 0, kCPUPrioritized = 3, kAsync = 4 };

/// mxnet::Context.
struct Context {
  int dev_type;
  std::int32_t dev_id;
};
constexpr int kCPUContext = 1;
constexpr int kGPUContext = 2;
constexpr int kPinnedContext = 3;  // of the host, for GPUs

/// mxnet::engine::CallbackOnComplete. The third argument of `callback` is a dmlc::Error.
struct OnComplete {
  void (*callback)(void* engine, void* param, const void* error);
  void* engine;
  void* param;
};

using NDArrayHandle = void*;
/// Has three arguments (run context, on_complete, param) in the wheels of MXNet 1.9.1. In MXNet 2
/// and in NVIDIA's builds of 1.9.1 there are four: on_start comes second. begin_operation()
/// understands both.
using EngineFunction = void (*)(void* run_context, void* second, void* third, void* fourth);
using ParamDeleter = void (*)(void* param);

/// Functions of type int return 0 for success.
struct Api {
  const char* (*GetLastError)();
  int (*CustomOpRegister)(const char* op_type, PropertyCreator creator);
  int (*EnginePushAsyncND)(EngineFunction function, void* param, ParamDeleter deleter,
                           const void* context, NDArrayHandle* const_arrays, int num_const,
                           NDArrayHandle* mutable_arrays, int num_mutable, const void* property,
                           int priority, const char* name, bool wait);
  int (*NDArrayCreate64)(const std::int64_t* shape, int ndim, int dev_type, int dev_id,
                         int delay_alloc, int dtype, NDArrayHandle* out);
  /// Another handle of the same array.
  int (*NDArrayDetach)(NDArrayHandle handle, NDArrayHandle* out);
  int (*NDArrayFree)(NDArrayHandle handle);
  int (*NDArrayGetData)(NDArrayHandle handle, void** data);
  int (*NDArrayGetDType)(NDArrayHandle handle, int* dtype);
  int (*NDArrayGetShape)(NDArrayHandle handle, int* ndim, const int** shape);
  int (*NDArrayWaitAll)();
  int (*NDArrayWaitToRead)(NDArrayHandle handle);
  /// Those of what the host is linked with; null where it is not.
  int (*omp_get_max_threads)();
  int (*omp_get_num_procs)();
};

/// The table in use. Throws Error before one was loaded.
const Api& api();

/// Fills the table from the library at `path`, which must be loaded already.
void load_api(const char* path);

/// How many arguments the engine gives to an EngineFunction: 3 or 4. The first call finds out by an
/// operation, which starts the engine; MXNet reads its environment variables then. Throws Error for
/// any other engine.
int count_engine_arguments();

/// The arguments of an operation.
struct Operation {
  OnComplete on_complete;
  void* param;
};

/// To be called first in an EngineFunction, with its arguments after the first: tells an engine
/// with on_start that the operation begins. count_engine_arguments() has been called before the
/// push.
Operation begin_operation(void* second, void* third, void* fourth);

/// Throws the host's last error where `status` is not 0.
void check(int status, const char* function);

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_C_API_H_

#pragma once

// The part of MXNet's C interface that this library uses (c_api.h, base.h, op_attr_types.h and
// ndarray.h of 1.9.1). The functions are looked up in the libmxnet that the process has loaded. So
// one binary serves every build of MXNet 1.9.1 and MXNet 2, and c_api.cc has the differences
// between the two. One C++ class crosses this border: MXNet's exception.

#include <cstdint>
#include <stdexcept>
#include <string>

namespace dmlc {

/// The exception of MXNet. MXNet catches it, and then restores settings such as the size of bulks.
/// Other exceptions pass through MXNet, which then restores nothing.
struct Error : std::runtime_error {
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace dmlc

namespace gluon_syncbn::mxnet {

/// A function of any type. MXNet casts it to the type that belongs to its place in the list.
using Callback = void (*)();

struct CallbackList {
  int num_callbacks;
  Callback* callbacks;
  void** contexts;
};

using PropertyCreator = int (*)(const char* op_type, int num_kwargs, const char** keys,
                                const char** values, CallbackList* out);

enum OpReq : int { kNull = 0, kWrite = 1, kWriteInplace = 2, kAdd = 3 };

/// The layout of an array: dense, or one of two sparse layouts.
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
///
/// Later builds of MXNet 2 have one member more: a flag that MXNet sets with the first completion,
/// and reads after an exception of the EngineFunction. This library passes the flag by, because its
/// functions throw no exception and complete once.
struct OnComplete {
  void (*callback)(void* engine, void* param, const void* error);
  void* engine;
  void* param;
};

using NDArrayHandle = void*;
/// The wheels of MXNet 1.9.1 pass three arguments: run context, on_complete, param. MXNet 2 and
/// NVIDIA's builds of 1.9.1 pass four: on_start comes second.
using EngineFunction = void (*)(void* run_context, void* second, void* third, void* fourth);
using ParamDeleter = void (*)(void* param);

/// Functions of type int return 0 for success.
struct Api {
  void* library;  ///< a handle of dlopen
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
  /// From the OpenMP runtime that MXNet is linked to; null if there is none.
  int (*omp_get_max_threads)();
  int (*omp_get_num_procs)();
};

/// Returns the functions. Throws Error before load_api().
const Api& api();

/// Looks up the functions in the library at `path`, which must be loaded already.
void load_api(const char* path);

/// Throws MXNet's last error if `status` is not 0.
void check(int status, const char* function);

}  // namespace gluon_syncbn::mxnet

#ifndef GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_TYPES_H_
#define GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_TYPES_H_

// Layouts and numbers that cross MXNet's C interface (base.h, engine.h, op_attr_types.h and c_api.h
// of 1.9.1), written down here a second time: were they taken from src/mxnet, a wrong one there
// would not be noticed.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace gluon_syncbn::host {

/// As dmlc::Error: a std::runtime_error that adds nothing.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum DeviceType : int { kCPU = 1, kGPU = 2, kCPUPinned = 3 };

/// mxnet::Context.
struct Context {
  int dev_type = kCPU;
  std::int32_t dev_id = 0;

  bool operator<(const Context& other) const {
    return std::tie(dev_type, dev_id) < std::tie(other.dev_type, other.dev_id);
  }

  /// As MXNet prints it.
  std::string name() const {
    const char* type = dev_type == kGPU ? "gpu" : dev_type == kCPUPinned ? "cpu_pinned" : "cpu";
    return std::string(type) + "(" + std::to_string(dev_id) + ")";
  }
};

/// mxnet::RunContext.
struct RunContext {
  Context context;
  void* stream = nullptr;
  void* aux_stream = nullptr;
  bool is_bulk = false;
};

/// mxnet::engine::CallbackOnComplete. The last argument is a dmlc::Error, or nullptr.
struct OnComplete {
  void (*callback)(void* engine, void* operation, const void* error) = nullptr;
  void* engine = nullptr;
  void* operation = nullptr;

  void operator()(const std::runtime_error* error = nullptr) const {
    callback(engine, operation, error);
  }
};

/// mxnet::FnProperty.
enum class Property : int {
  kNormal = 0,
  kCopyFromGPU = 1,
  kCopyToGPU = 2,
  kCPUPrioritized = 3,
  kAsync = 4,
  kDeleteVar = 5,
  kGPUPrioritized = 6,
  kNoSkip = 7
};

/// mxnet::OpReqType.
enum OpReq : int { kNull = 0, kWrite = 1, kWriteInplace = 2, kAdd = 3 };

/// mshadow's numbers.
enum MXDType : int {
  kNoDType = -1,
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kInt32 = 4,
  kInt64 = 6
};

inline std::size_t size_of(int dtype) {
  switch (dtype) {
    case kFloat32:
    case kInt32:
      return 4;
    case kFloat64:
    case kInt64:
      return 8;
    case kFloat16:
      return 2;
    default:
      throw Error("unknown dtype " + std::to_string(dtype));
  }
}

using Shape = std::vector<int>;

/// MXCallbackList.
struct CallbackList {
  int num_callbacks = 0;
  void (**callbacks)() = nullptr;
  void** contexts = nullptr;
};

using PropertyCreator = int (*)(const char* op_type, int num_kwargs, const char** keys,
                                const char** values, CallbackList* out);

/// Places in the list of a property (CustomOpPropCallbacks) and of an operator (CustomOpCallbacks).
namespace property_at {
enum : int {
  kDelete,
  kListArguments,
  kListOutputs,
  kListAuxiliaryStates,
  kInferShape,
  kDeclareBackwardDependency,
  kCreateOperator,
  kInferType,
};
}
namespace operator_at {
enum : int { kDelete, kForward, kBackward };
}

using DeleteFunction = int (*)(void* state);
using ListFunction = int (*)(char*** names, void* state);
using InferShapeFunction = int (*)(int num_tensors, int* ndims, int** shapes, void* state);
using InferTypeFunction = int (*)(int num_tensors, int* dtypes, void* state);
using DependencyFunction = int (*)(const int* out_grad, const int* in_data, const int* out_data,
                                   int* num_dependencies, int** dependencies, void* state);
using CreateFunction = int (*)(const char* context, int num_inputs, unsigned** shapes,
                               const int* ndims, const int* dtypes, CallbackList* out, void* state);
using RunFunction = int (*)(int size, void** arrays, int* tags, const int* requests, int is_train,
                            void* state);

/// The callback at `place` with the context that belongs to it.
template <class Function, class... Arguments>
int call(const CallbackList& list, int place, Arguments... arguments) {
  return reinterpret_cast<Function>(list.callbacks[place])(arguments..., list.contexts[place]);
}

}  // namespace gluon_syncbn::host

#endif  // GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_TYPES_H_

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/device.h"
#include "mxnet/c_api.h"

namespace gluon_syncbn::mxnet {

/// Completes an operation of the engine. succeed() or fail() must be called exactly once, from any
/// thread.
class Completion {
 public:
  explicit Completion(const OnComplete& on_complete) : on_complete_(on_complete) {}

  void succeed() const { on_complete_.callback(on_complete_.engine, on_complete_.param, nullptr); }
  /// asnumpy() and wait_to_read() then raise an MXNetError with the message. Only ErrorQueue calls
  /// this.
  void fail(const std::string& message) const;

 private:
  OnComplete on_complete_;
};

/// Returns the number of arguments that the engine passes to an EngineFunction, 3 or 4. The first
/// call pushes an operation to find out. That starts the engine, which then reads MXNet's
/// environment variables. Throws Error for any other engine.
int count_engine_arguments();

/// Whether the environment variable MXNET_ENGINE_TYPE names this engine.
bool is_engine(const char* type);

/// Returns "NAME=value" for the environment variable that makes the engine asynchronous on GPUs, or
/// "" if none does. In such an engine, an operation on a GPU begins before its inputs are computed,
/// and its stream waits for them.
std::string asynchronous_gpu_engine();

/// Runs `operation` after all earlier operations that write `inputs` or use `outputs`. Later
/// operations that use `outputs` wait until its completion is called.
///
/// `operation` runs on a worker of `device`. With kAsync, it runs before push() returns if there is
/// nothing to wait for. `operation` must not throw.
void push(const Device& device, const std::vector<NDArrayHandle>& inputs,
          const std::vector<NDArrayHandle>& outputs, const char* name, EngineProperty property,
          std::function<void(Completion)> operation);

/// Runs `task` on a prioritized thread of the engine after all earlier operations that write
/// `input`, even if one of them has failed. `task` must not throw.
void push_after(NDArrayHandle input, const char* name, std::function<void()> task);

}  // namespace gluon_syncbn::mxnet

#ifndef GLUON_SYNCBN_MXNET_ENGINE_H_
#define GLUON_SYNCBN_MXNET_ENGINE_H_

#include <functional>
#include <string>
#include <vector>

#include "common/device.h"
#include "mxnet/c_api.h"

namespace gluon_syncbn::mxnet {

/// Tells the engine that an operation is over. To be called exactly once, from any thread.
class Completion {
 public:
  explicit Completion(const OnComplete& on_complete) : on_complete_(on_complete) {}

  void succeed() const { on_complete_.callback(on_complete_.engine, on_complete_.param, nullptr); }
  /// The message comes out of asnumpy() or wait_to_read() as MXNetError. To be called by
  /// ErrorQueue.
  void fail(const std::string& message) const;

 private:
  OnComplete on_complete_;
};

/// Whether the environment names this engine of MXNet, as MXNET_ENGINE_TYPE does.
bool is_engine(const char* type);

/// The environment variable, with its value, by which the engine lets an operation on a GPU begin
/// before its inputs are computed, which its stream then waits for; "" where it does not.
std::string asynchronous_gpu_engine();

/// Runs `operation` once all that writes `inputs` or uses `outputs` has finished: on a worker of
/// `device`, or, with kAsync, before this returns if there is nothing to wait for. The engine holds
/// back whoever uses `outputs` until the completion is called. `operation` must not throw.
void push(const Device& device, const std::vector<NDArrayHandle>& inputs,
          const std::vector<NDArrayHandle>& outputs, const char* name, EngineProperty property,
          std::function<void(Completion)> operation);

/// Runs `task` on one of the engine's prioritized threads once all that writes `input` has
/// finished, also where that has failed. It must not throw.
void push_after(NDArrayHandle input, const char* name, std::function<void()> task);

/// Runs `task` on a worker of `device`, after nothing and before nothing. It must not throw.
void post(const Device& device, const char* name, std::function<void()> task);

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_ENGINE_H_

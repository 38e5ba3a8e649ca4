#include "mxnet/engine.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "common/error.h"
#include "cuda/driver.h"

namespace gluon_syncbn::mxnet {
namespace {

using Task = std::function<void(Completion)>;

std::atomic<int> the_engine_arguments{0};
int the_probe = 0;  // its address is the parameter of the probe

struct Operation {
  OnComplete on_complete;
  void* param;
};

/// Reads the arguments of an EngineFunction after the first. Calls on_start if the engine has it.
Operation begin_operation(void* second, void* third, void* fourth) {
  if (the_engine_arguments == 3) return {*static_cast<OnComplete*>(second), third};
  const auto on_start = *static_cast<OnComplete*>(second);  // on_start has the same type.
  on_start.callback(on_start.engine, on_start.param, nullptr);
  return {*static_cast<OnComplete*>(third), fourth};
}

void probe(void* /*run_context*/, void* second, void* third, void* fourth) {
  // If the engine passes three arguments, `fourth` is the value that happens to be in its register.
  if (third == &the_probe) {
    the_engine_arguments = 3;
  } else if (fourth == &the_probe) {
    the_engine_arguments = 4;
  } else {
    return;
  }
  const OnComplete done = begin_operation(second, third, fourth).on_complete;
  done.callback(done.engine, done.param, nullptr);
}

void run(void* /*run_context*/, void* second, void* third, void* fourth) {
  const Operation operation = begin_operation(second, third, fourth);
  // MXNet changes the GPU of any thread that frees arrays or pushes operations of another GPU, and
  // its workers rely on their GPU. The worker of the last device of a round frees arrays of all.
  const cuda::KeepsContext keeps_gpu;
  // Moved out of `param`, because completing deletes `param`. The task may still be running then,
  // and may have locked its own mutex.
  const Task task = std::move(*static_cast<Task*>(operation.param));
  task(Completion(operation.on_complete));
}

void destroy(void* task) { std::unique_ptr<Task>(static_cast<Task*>(task)); }

/// `always` runs the task even if an operation that writes an input has failed.
void push_to(const Context& context, std::vector<NDArrayHandle> inputs,
             std::vector<NDArrayHandle> outputs, const char* name, EngineProperty property,
             bool always, Task task) {
  count_engine_arguments();
  // MXNet may run the operation at once, and then changes the GPU of this thread.
  const cuda::KeepsContext keeps_gpu;
  auto owned = std::make_unique<Task>(std::move(task));
  // From here on the engine owns the task, even if the push fails.
  check(api().EnginePushAsyncND(&run, owned.release(), &destroy, &context, inputs.data(),
                                static_cast<int>(inputs.size()), outputs.data(),
                                static_cast<int>(outputs.size()), &property, 0, name, always),
        "MXEnginePushAsyncND");
}

}  // namespace

void Completion::fail(const std::string& message) const {
  const dmlc::Error error(message);
  on_complete_.callback(on_complete_.engine, on_complete_.param, &error);
}

int count_engine_arguments() {
  if (the_engine_arguments == 0) {
    const Context cpu{kCPUContext, 0};
    const EngineProperty property = kAsync;  // runs the probe before the push returns
    check(api().EnginePushAsyncND(&probe, &the_probe, nullptr, &cpu, nullptr, 0, nullptr, 0,
                                  &property, 0, "SyncBatchNormProbe", false),
          "MXEnginePushAsyncND");
  }
  if (the_engine_arguments == 0) {
    throw Error(
        "the engine of this MXNet gives its functions other arguments than those of MXNet "
        "1.9.1 and 2");
  }
  return the_engine_arguments;
}

bool is_engine(const char* type) {
  const char* chosen = std::getenv("MXNET_ENGINE_TYPE");
  return chosen && std::string_view(chosen) == type;
}

std::string asynchronous_gpu_engine() {
  if (count_engine_arguments() == 3) return "";  // This engine ignores these variables.
  const auto value_of = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  const std::string type = value_of("MXNET_ENGINE_TYPE");
  if (type.find("Async") != std::string::npos) return "MXNET_ENGINE_TYPE=" + type;
  const std::string asynchronous = value_of("MXNET_ASYNC_GPU_ENGINE");
  if (asynchronous.empty() || asynchronous == "0") return "";
  return "MXNET_ASYNC_GPU_ENGINE=" + asynchronous;
}

void push(const Device& device, const std::vector<NDArrayHandle>& inputs,
          const std::vector<NDArrayHandle>& outputs, const char* name, EngineProperty property,
          Task operation) {
  push_to({device.type == "gpu" ? kGPUContext : kCPUContext, device.index}, inputs, outputs, name,
          property, false, std::move(operation));
}

void push_after(NDArrayHandle input, const char* name, std::function<void()> task) {
  push_to({kCPUContext, 0}, {input}, {}, name, kCPUPrioritized, true,
          [task = std::move(task)](const Completion& completion) {
            task();
            completion.succeed();
          });
}

}  // namespace gluon_syncbn::mxnet

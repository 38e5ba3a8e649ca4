#include "mxnet/engine.h"

#include <memory>
#include <utility>

#include "core/error.h"

namespace gluon_syncbn::mxnet {
namespace {

using Operation = std::function<void(Completion)>;

void run(void* /*run_context*/, void* on_complete, void* operation) {
  (*static_cast<Operation*>(operation))(Completion(*static_cast<OnComplete*>(on_complete)));
}

void destroy(void* operation) { std::unique_ptr<Operation>(static_cast<Operation*>(operation)); }

}  // namespace

void Completion::fail(const std::string& message) const {
  const std::runtime_error error(message);
  on_complete_.callback(on_complete_.engine, on_complete_.param, &error);
}

void push(const Device& device, const std::vector<NDArrayHandle>& inputs,
          const std::vector<NDArrayHandle>& outputs, const char* name, EngineProperty property,
          Operation operation) {
  const Context context{kCPUContext, device.index};
  auto read = inputs;
  auto written = outputs;
  auto owned = std::make_unique<Operation>(std::move(operation));
  // The engine owns the operation from here on, also where the push fails.
  check(api().EnginePushAsyncND(&run, owned.release(), &destroy, &context, read.data(),
                                static_cast<int>(read.size()), written.data(),
                                static_cast<int>(written.size()), &property, 0, name, false),
        "MXEnginePushAsyncND");
}

void post(const Device& device, const char* name, std::function<void()> task) {
  push(device, {}, {}, name, kNormal, [task = std::move(task)](const Completion& completion) {
    task();
    completion.succeed();
  });
}

}  // namespace gluon_syncbn::mxnet

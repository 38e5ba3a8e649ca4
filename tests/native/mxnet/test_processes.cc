// The layer as one of several processes. In the place of Horovod stands a function that answers as
// if every other process had sent what this one sends: all have the same batch, whose statistics
// are then those of one of them.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "horovod/process_sets.h"
#include "mxnet/layer.h"
#include "sync/failed_steps.h"

namespace gluon_syncbn::tests {
namespace {

constexpr int kProcesses = 3;
constexpr int kProcessSet = 5;
const Attributes kOfProcesses{{"process_set", std::to_string(kProcessSet)}};

/// What takes the place of the other processes.
class Others {
 public:
  static Others& get() {
    static Others others;
    return others;
  }

  /// From now on this process is one of `number`.
  void become(int number) {
    horovod::add_process_set({&allgather, kProcessSet, 0, number, "0, 1, ..."});
    const std::lock_guard<std::mutex> lock(mutex_);
    number_ = number;
  }
  /// The next exchange ends with this error.
  void fail(const std::string& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    error_ = error;
  }
  /// They do not answer before they are let go.
  void hold() {
    const std::lock_guard<std::mutex> lock(mutex_);
    hold_ = true;
  }
  void let_go() {
    std::vector<mxnet::OnComplete> held;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      hold_ = false;
      held.swap(held_);
    }
    for (const auto& on_complete : held) fake_mxnet::complete(on_complete);
  }

  /// As horovod_mxnet_allgather_async, for messages that are all of one length.
  static int allgather(void** inputs, void** outputs, const char* /*name*/, int /*priority*/,
                       int process_set, int number) {
    if (process_set != kProcessSet || number != 1) return -1;
    const NDArray input = *static_cast<NDArray*>(inputs[0]);
    auto* output = static_cast<NDArray*>(outputs[0]);  // Horovod keeps the handle itself
    const int processes = get().number();
    *output =
        NDArray({processes * static_cast<int>(input.size())}, mxnet::kInt64, output->context());
    fake_mxnet::Engine::get().push(
        [input, output, processes](const mxnet::OnComplete& on_complete) {
          const auto* message = static_cast<const std::int64_t*>(input.data());
          auto* answer = static_cast<std::int64_t*>(output->data());
          for (int i = 0; i < processes; ++i) {
            answer = std::copy(message, message + input.size(), answer);
          }
          get().answer(on_complete);
        },
        {mxnet::kCPUContext, 0}, {input.variable()}, {output->variable()}, mxnet::kCPUPrioritized);
    return 0;
  }

 private:
  int number() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return number_;
  }
  void answer(const mxnet::OnComplete& on_complete) {
    std::optional<std::string> error;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (hold_) return held_.push_back(on_complete);
      error.swap(error_);
    }
    if (!error) return fake_mxnet::complete(on_complete);
    const fake_mxnet::Error told(*error);
    fake_mxnet::complete(on_complete, &told);
  }

  std::mutex mutex_;
  int number_ = kProcesses;
  std::optional<std::string> error_;
  bool hold_ = false;
  std::vector<mxnet::OnComplete> held_;
};

class Processes : public Library {
 public:
  Processes() { Others::get().become(kProcesses); }

  /// Steps are those of one device with the batch of all.
  void check_steps() {
    FailedSteps::instance().drop();
    layer.expect_running_as_they_are();
    std::uint32_t seed = 0;
    for (const auto& order : {std::vector<int>{0, 1}, {1, 0}, {0, 1}}) {
      run_step(&layer, kTwo, seed += 10, {order});
    }
  }

  Layer layer{"bn", 3, 2, {}, kOfProcesses};
  const Batch x{kTwo, 1};
};

}  // namespace

TEST_CASE_FIXTURE(Processes, "processes: an exchange that fails") {
  Others::get().fail("connection closed by peer");
  {
    const auto calls = layer.call(x.arrays);
    for (const Call& call : calls) {
      check_error(call.out, {"SyncBatchNorm 'bn'", "the exchange with other processes has failed: ",
                             "connection closed by peer"});
    }
  }
  check_steps();
}

TEST_CASE_FIXTURE(Processes, "processes: a step that has failed gives the others no gradients") {
  const Layer failing("failing", 3, 2, {}, kOfProcesses);
  Layer local("local", 3, 2);
  auto calls = layer.call(x.arrays);
  auto local_calls = local.call(x.arrays);
  const auto forward = local.check_outputs(x.values, local_calls);
  layer.check_outputs(x.values, calls);
  Others::get().fail("connection closed by peer");
  check_error(failing.call(x.arrays)[0].out, {"connection closed by peer"});
  for (std::size_t d = 0; d < kTwo.size(); ++d) {
    calls[d].backward(x.arrays[d]);
    local_calls[d].backward(x.arrays[d]);
  }
  for (const Call& call : calls) {
    check_error(call.gradients[0], {"the step has failed already: SyncBatchNorm 'failing' round 0",
                                    "connection closed by peer"});
  }
  local.check_gradients(forward, x.values, local_calls);
  check_steps();
}

TEST_CASE_FIXTURE(Processes, "processes: Horovod is initialized again with other processes") {
  layer.attributes.emplace_back("scope", "graph");
  layer.expect_running_as_they_are();
  const fake_mxnet::Node graph(layer.attributes);
  std::vector<Call> kept(kTwo.size());
  const auto forward = [&] {  // as a static graph does, by the operators that it keeps
    for (std::size_t d = 0; d < kTwo.size(); ++d) {
      const auto inputs = layer.inputs(static_cast<int>(d), x.arrays[d]);
      if (!kept[d].op) kept[d].op = graph.create_operator(device(static_cast<int>(d)), inputs);
      kept[d].inputs = inputs;
      kept[d].out = NDArray(x.arrays[d].shape(), x.arrays[d].dtype(), x.arrays[d].context());
      kept[d].op->forward(inputs, kept[d].out, true, true);
    }
  };
  const auto backward = [&] {
    for (std::size_t d = 0; d < kTwo.size(); ++d) kept[d].backward(x.arrays[d]);
  };
  for (const int processes : {kProcesses, 2, 4}) {
    Others::get().become(processes);
    forward();
    backward();
    layer.check_gradients(layer.check_outputs(x.values, kept), x.values, kept);
    layer.check_running();
  }
  forward();
  layer.check_outputs(x.values, kept);
  Others::get().become(kProcesses);
  backward();
  check_error(kept[0].gradients[0], {"has begun anew with other processes"});
}

TEST_CASE_FIXTURE(Processes, "processes: others that are late") {
  Others::get().hold();
  {
    const ScopedTimeout timeout(0.2);
    const auto calls = layer.call(x.arrays);
    for (const Call& call : calls) {
      check_error(call.out, {"SyncBatchNorm 'bn'", "forward waited", "for the other processes",
                             "process 0 of 3 (Horovod's ranks 0, 1, ...)"});
    }
  }
  Others::get().let_go();
  check_steps();
}

}  // namespace gluon_syncbn::tests

// The layer as one of several processes. In the place of Horovod stands a function that answers as
// if every other process had sent what this one sends: all have the same batch.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fake_mxnet/types.h"
#include "scenarios/host_api.h"
#include "scenarios/norm.h"
#include "scenarios/scenario.h"

namespace gluon_syncbn::scenarios {
namespace {

constexpr int kProcesses = 3;
constexpr int kProcessSet = 5;
constexpr double kShort = 0.2;  // seconds
const std::vector<Shape> kShapes{{2, 3, 4}, {1, 3, 4}};

/// What takes the place of the other processes.
class Others {
 public:
  static Others& get() {
    static Others others;
    return others;
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
    std::vector<OnComplete> held;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      hold_ = false;
      held.swap(held_);
    }
    for (const OnComplete& on_complete : held) on_complete();
  }

  /// As horovod_mxnet_allgather_async, for messages that are all of one length. Roll calls are
  /// refused: how many there are depends on time, and records have to be the same.
  static int allgather(void** inputs, void** outputs, const char* name, int /*priority*/,
                       int process_set, int number) {
    if (name == std::string("SyncBatchNorm.roll-call")) return -1;
    if (process_set != kProcessSet || number != 1) return -1;
    void* input = inputs[0];
    void* output = outputs[0];
    push_handles({host::kCPU, 0}, Property::kCPUPrioritized, {input}, {output},
                 [input, output](const OnComplete& on_complete) {
                   int ndim = 0;
                   const int* shape = nullptr;
                   void* from = nullptr;
                   void* to = nullptr;
                   host().get_shape(input, &ndim, &shape);
                   const auto words = shape[0];
                   host().get_data(input, &from);
                   host().get_data(output, &to);
                   const auto* message = static_cast<const std::int64_t*>(from);
                   for (int process = 0; process < kProcesses; ++process) {
                     std::copy(message, message + words,
                               static_cast<std::int64_t*>(to) + std::ptrdiff_t{process} * words);
                   }
                   get().answer(on_complete);
                 });
    return 0;
  }

 private:
  void answer(const OnComplete& on_complete) {
    std::optional<std::string> error;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (hold_) {
        held_.push_back(on_complete);
        return;
      }
      error.swap(error_);
    }
    if (!error) return on_complete();
    const host::Error told(*error);
    on_complete(&told);
  }

  std::mutex mutex_;
  std::optional<std::string> error_;
  bool hold_ = false;
  std::vector<OnComplete> held_;
};

Norm make(Session& session, int dtype) {
  adapter().add_process_set(&Others::allgather, kProcessSet, 0, kProcesses, "0, 1, 2");
  return Norm(session.key("bn"), 3, dtype, 2, {},
              {{"process_set", std::to_string(kProcessSet)}, {"across", session.key("across")}});
}

void steps_work(Session& session, Norm& norm, int dtype = host::kFloat32) {
  std::uint32_t seed = 0;
  for (const auto& order : {std::vector<int>{0, 1}, {1, 0}, {0, 1}}) {
    Step how;
    how.order = order;
    how.processes = kProcesses;
    step(session, norm, kShapes, dtype, seed += 10, how);
  }
}

Scenario steps(const std::string& name, int dtype) {
  return {name, [=](Session& session) {
            Norm norm = make(session, dtype);
            steps_work(session, norm, dtype);
          }};
}

/// Both devices get the error, and the running statistics stay as they are.
void require_errors(const std::vector<Array>& outputs, const std::vector<std::string>& parts) {
  for (const Array& output : outputs) {
    require_error([&] { output.read(); }, parts);
  }
}

void an_exchange_that_fails(Session& session) {
  Norm norm = make(session, host::kFloat32);
  const Batch x(kShapes, host::kFloat32, 1);
  Others::get().fail("connection closed by peer");
  {
    const Recorded recorded;
    require_errors(norm(x.arrays),
                   {session.key("bn"),
                    "the exchange with other processes has failed: ", "connection closed by peer"});
  }
  steps_work(session, norm);
}

void processes_that_are_late(Session& session) {
  Norm norm = make(session, host::kFloat32);
  const Batch x(kShapes, host::kFloat32, 1);
  Others::get().hold();
  {
    const Timeout timeout(kShort);
    const Recorded recorded;
    require_errors(norm(x.arrays), {session.key("bn"), "forward waited", "for the other processes",
                                    "process 0 of 3 (Horovod's ranks 0, 1, 2)"});
  }
  Others::get().let_go();
  steps_work(session, norm);
}

}  // namespace

std::vector<Scenario> process_scenarios() {
  return {
      steps("one of three processes", host::kFloat32),
      steps("one of three processes, float16", host::kFloat16),
      steps("one of three processes, float64", host::kFloat64),
      {"an exchange of processes that fails", an_exchange_that_fails},
      {"processes that are late", processes_that_are_late},
  };
}

}  // namespace gluon_syncbn::scenarios

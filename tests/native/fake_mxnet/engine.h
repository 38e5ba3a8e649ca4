#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mxnet/c_api.h"

namespace gluon_syncbn::fake_mxnet {

/// How many arguments the C interface gives to the functions of operations: 3, as in the wheels of
/// MXNet 1.9.1, or with FAKE_MXNET_ENGINE_ARGUMENTS=4 those of MXNet 2.
int engine_arguments();

/// As dmlc::Error: a std::runtime_error that adds nothing.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Threads that work off one queue, started when there is something to do.
class Workers {
 public:
  explicit Workers(std::size_t number) : number_(number) {}
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void push(std::function<void()> task);
  /// Ends the threads when they have worked off the queue. The next task starts others.
  void stop();

 private:
  void work();

  const std::size_t number_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  bool stop_ = false;
};

/// The error of an operation, for the readers of its outputs. All outputs of one operation share
/// it, so the reader that takes it takes it from all.
class Failure {
 public:
  explicit Failure(std::string message) : message_(std::move(message)) {}
  bool is_taken();
  std::optional<std::string> take();

 private:
  std::mutex mutex_;
  std::optional<std::string> message_;
};

struct Operation;

/// What operations depend on: one writer, or any number of readers, in the order of the pushes. It
/// keeps the memory, if it was given any, until the last operation on it is over.
class Variable {
 public:
  explicit Variable(std::shared_ptr<void> memory = nullptr) : memory_(std::move(memory)) {}

  /// Whether `operation` may go on at once; otherwise it is told later.
  bool append(Operation* operation, bool write);
  /// Returns who may go on now. A writer leaves `failure`, or nothing.
  std::vector<Operation*> complete(bool write, const std::shared_ptr<Failure>& failure);

  bool ready_to_read();
  /// Null if there is none, or if it was taken.
  std::shared_ptr<Failure> failure();

 private:
  struct Pending {
    Operation* operation;
    bool write;
  };
  std::vector<Operation*> next();

  const std::shared_ptr<void> memory_;
  std::mutex mutex_;
  std::deque<Pending> waiting_;
  int reading_ = 0;
  bool writing_ = false;
  std::shared_ptr<Failure> failure_;
};

using VariablePtr = std::shared_ptr<Variable>;

/// As MXNet's ThreadedEnginePerDevice: what it runs, when, and on which thread. Like it, it has no
/// lock that all operations take, which would hide races from the thread sanitizer.
class Engine {
 public:
  using Function = std::function<void(const mxnet::OnComplete&)>;

  static Engine& get();

  /// Runs `function` once `reads` and `writes` allow; unless `always`, not if one of them holds a
  /// failure. No variable may be named twice.
  void push(Function function, const mxnet::Context& context, std::vector<VariablePtr> reads,
            std::vector<VariablePtr> writes, mxnet::EngineProperty property = mxnet::kNormal,
            bool always = false);
  /// Throws what operations left.
  void wait_for(const VariablePtr& variable);
  void wait_for_all();

  /// MXNet lists failures without a lock, so that at most one operation may fail at a time.
  int most_failing_at_once() const { return most_failing_; }
  long pushes() const { return pushes_; }

  /// Where callbacks of custom operators are called.
  Workers& custom_operators() { return custom_operators_; }

 private:
  Engine();
  static void on_complete(void* engine, void* operation, const void* error);
  void stop();
  void to_execute(Operation* operation, bool on_pushing_thread);
  void execute(Operation* operation);
  void dispatch(const std::vector<Operation*>& operations);

  std::deque<Workers> cpus_;
  std::deque<Workers> gpus_;
  Workers prioritized_{4};  // MXNET_CPU_PRIORITY_NTHREADS
  Workers custom_operators_{4};
  std::atomic<long> pushes_{0};
  std::atomic<long> pending_{0};
  std::atomic<int> failing_{0};
  std::atomic<int> most_failing_{0};
};

inline void complete(const mxnet::OnComplete& on_complete, const Error* error = nullptr) {
  on_complete.callback(on_complete.engine, on_complete.param, error);
}

}  // namespace gluon_syncbn::fake_mxnet

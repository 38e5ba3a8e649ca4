#ifndef GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_ENGINE_H_
#define GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_ENGINE_H_

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_mxnet/types.h"

namespace gluon_syncbn::host {

struct Operation;

/// What an operation left to whoever reads what it wrote. All that got it from one operation share
/// it, so that throwing it once clears it for all (threaded_engine.h, ExceptionRef).
using ErrorRef = std::shared_ptr<std::exception_ptr>;

/// What operations depend on: one writer, or any number of readers, in the order of the pushes
/// (threaded_engine.cc, ThreadedVar).
class Variable {
 public:
  /// Both return whether `operation` may go on at once; otherwise it is told later.
  bool append_read(Operation* operation);
  bool append_write(Operation* operation);
  /// Both return who may go on now.
  std::vector<Operation*> complete_read();
  /// `gone`: the variable was marked and is of no use any more.
  std::vector<Operation*> complete_write(bool* gone);

  void set_to_delete();
  bool ready_to_read();

  ErrorRef error;  ///< guarded by the engine

 private:
  struct Pending {
    Operation* operation;
    bool write;
  };

  std::mutex mutex_;
  std::deque<Pending> waiting_;
  int reading_ = 0;
  bool writing_ = false;
  bool to_delete_ = false;
};

/// MXNet's ThreadedEnginePerDevice: what it runs, when, and on which thread.
class Engine {
 public:
  using AsyncFunction = std::function<void(const RunContext&, const OnComplete&)>;

  static Engine& get();
  Engine();
  ~Engine();

  Variable* new_variable() { return new Variable(); }

  /// Runs `function` once `reads` and `writes` allow, skipped where an error comes in through one
  /// of them, unless `property` is kNoSkip or `wait` is set. No variable may be named twice.
  void push_async(AsyncFunction function, const Context& context, std::vector<Variable*> reads,
                  std::vector<Variable*> writes, Property property = Property::kNormal,
                  bool wait = false);
  /// The same for what is over when it returns.
  void push_sync(const std::function<void(const RunContext&)>& function, const Context& context,
                 std::vector<Variable*> reads, std::vector<Variable*> writes,
                 Property property = Property::kNormal);
  /// Destroys `variable` and calls `release` when all that uses it is over.
  void delete_variable(std::function<void()> release, const Context& context, Variable* variable);

  /// Both throw what operations left.
  void wait_for(Variable* variable);
  void wait_for_all();
  void rethrow(Variable* variable);

  /// Operations that have not begun are dropped from here on.
  void notify_shutdown();

 private:
  struct Worker {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<Operation*> queue;
    bool stop = false;
    std::vector<std::thread> threads;
  };

  static void on_complete(void* engine, void* operation, const void* error);

  void to_execute(Operation* operation, bool on_pushing_thread);
  void execute(const RunContext& run_context, Operation* operation);
  void complete(Operation* operation);
  void dispatch(const std::vector<Operation*>& operations);
  void work(const Context& context, Worker& worker);
  /// Those of a context that wait for other workers than the rest.
  enum class Line { kUsual, kCopies, kPrioritized };
  static Line line_of(const Operation& operation);
  Worker& worker_of(const Operation& operation);
  void remember(const ErrorRef& error);  // errors_mutex_ is held

  std::mutex workers_mutex_;
  std::map<std::pair<Context, Line>, std::unique_ptr<Worker>> workers_;

  std::mutex finished_mutex_;
  std::condition_variable finished_;
  long pending_ = 0;
  bool shutdown_ = false;

  std::mutex errors_mutex_;
  std::vector<ErrorRef> global_errors_;
  std::vector<Operation*> never_deleted_;  // skipped deletions; guarded as the errors
};

/// What is written is not also listed as read (engine.h, DeduplicateVarHandle).
void deduplicate(std::vector<Variable*>* reads, std::vector<Variable*>* writes);

}  // namespace gluon_syncbn::host

#endif  // GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_ENGINE_H_

#include "fake_mxnet/engine.h"

#include <algorithm>
#include <atomic>

#include "fake_mxnet/device_kind.h"

namespace gluon_syncbn::host {
namespace {

constexpr std::size_t kPriorityWorkers = 4;  // MXNET_CPU_PRIORITY_NTHREADS

}  // namespace

struct Operation {
  Engine::AsyncFunction function;
  Context context;
  std::vector<Variable*> reads;
  std::vector<Variable*> writes;
  Property property;
  bool wait;
  std::atomic<std::size_t> blocked_by{0};
  ErrorRef error{};
};

bool Variable::append_read(Operation* operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!writing_ && waiting_.empty()) {
    ++reading_;
    return true;
  }
  waiting_.push_back({operation, false});
  return false;
}

bool Variable::append_write(Operation* operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!writing_ && reading_ == 0 && waiting_.empty()) {
    writing_ = true;
    return true;
  }
  waiting_.push_back({operation, true});
  return false;
}

std::vector<Operation*> Variable::complete_read() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--reading_ > 0 || waiting_.empty()) return {};
  Operation* next = waiting_.front().operation;
  waiting_.pop_front();
  writing_ = true;
  return {next};
}

std::vector<Operation*> Variable::complete_write(bool* gone) {
  const std::lock_guard<std::mutex> lock(mutex_);
  *gone = to_delete_;
  writing_ = false;
  std::vector<Operation*> next;
  while (!waiting_.empty() && !waiting_.front().write) {
    next.push_back(waiting_.front().operation);
    waiting_.pop_front();
    ++reading_;
  }
  if (next.empty() && !waiting_.empty()) {
    next.push_back(waiting_.front().operation);
    waiting_.pop_front();
    writing_ = true;
  }
  return next;
}

void Variable::set_to_delete() {
  const std::lock_guard<std::mutex> lock(mutex_);
  to_delete_ = true;
}

bool Variable::ready_to_read() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !writing_ && waiting_.empty();
}

Engine& Engine::get() {
  static Engine engine;
  return engine;
}

// What is made first is there until the end.
Engine::Engine() { DeviceKind::of(kCPU); }

Engine::~Engine() {
  for (auto& [_, worker] : workers_) {
    {
      const std::lock_guard<std::mutex> lock(worker->mutex);
      worker->stop = true;
    }
    worker->wake.notify_all();
    for (std::thread& thread : worker->threads) thread.join();
  }
  const OnComplete nothing{[](void*, void*, const void*) {}, nullptr, nullptr};
  for (Operation* deletion : never_deleted_) {
    deletion->function({}, nothing);
    delete deletion->writes.front();
    delete deletion;
  }
}

void Engine::push_async(AsyncFunction function, const Context& context,
                        std::vector<Variable*> reads, std::vector<Variable*> writes,
                        Property property, bool wait) {
  DeviceKind::of(context.dev_type);
  auto* operation = new Operation{std::move(function), context,  std::move(reads),
                                  std::move(writes),   property, wait};
  {
    const std::lock_guard<std::mutex> lock(finished_mutex_);
    ++pending_;
  }
  // The one more is this function, lest the operation run before it is known everywhere.
  operation->blocked_by = operation->reads.size() + operation->writes.size() + 1;
  std::size_t granted = 1;
  for (Variable* variable : operation->reads) granted += variable->append_read(operation);
  for (Variable* variable : operation->writes) granted += variable->append_write(operation);
  if (operation->blocked_by.fetch_sub(granted) == granted) to_execute(operation, true);
}

void Engine::push_sync(const std::function<void(const RunContext&)>& function,
                       const Context& context, std::vector<Variable*> reads,
                       std::vector<Variable*> writes, Property property) {
  push_async(
      [function](const RunContext& run_context, const OnComplete& on_complete) {
        function(run_context);
        on_complete();
      },
      context, std::move(reads), std::move(writes), property);
}

void Engine::delete_variable(std::function<void()> release, const Context& context,
                             Variable* variable) {
  push_async(
      [release = std::move(release), variable](const RunContext&, const OnComplete& on_complete) {
        variable->set_to_delete();
        release();
        on_complete();
      },
      context, {}, {variable}, Property::kDeleteVar);
}

// threaded_engine_perdevice.cc, PushToExecute: asynchronous operations and deletions run on the
// thread that pushes them where nothing holds them back, without a stream; whatever else, on a
// worker of the operation's context.
void Engine::to_execute(Operation* operation, bool on_pushing_thread) {
  const Property property = operation->property;
  if (on_pushing_thread && (property == Property::kAsync || property == Property::kDeleteVar)) {
    DeviceKind::of(operation->context.dev_type).enter(operation->context.dev_id);
    execute({operation->context, nullptr, nullptr, false}, operation);
    return;
  }
  Worker& worker = worker_of(*operation);
  {
    const std::lock_guard<std::mutex> lock(worker.mutex);
    if (property == Property::kDeleteVar) {
      worker.queue.push_front(operation);
    } else {
      worker.queue.push_back(operation);
    }
  }
  worker.wake.notify_one();
}

Engine::Line Engine::line_of(const Operation& operation) {
  switch (operation.property) {
    case Property::kCopyFromGPU:
    case Property::kCopyToGPU:
      return Line::kCopies;
    case Property::kCPUPrioritized:
      return Line::kPrioritized;
    default:
      return Line::kUsual;
  }
}

Engine::Worker& Engine::worker_of(const Operation& operation) {
  Context context = operation.context;
  const Line line = line_of(operation);
  // One line for all CPU contexts.
  if (line == Line::kPrioritized) context = {kCPU, 0};
  const std::lock_guard<std::mutex> lock(workers_mutex_);
  auto& worker = workers_[{context, line}];
  if (!worker) {
    worker = std::make_unique<Worker>();
    const std::size_t number = line == Line::kPrioritized
                                   ? kPriorityWorkers
                                   : DeviceKind::of(context.dev_type).workers_per_device();
    for (std::size_t i = 0; i < number; ++i) {
      worker->threads.emplace_back(
          [this, context, block = worker.get()] { work(context, *block); });
    }
  }
  return *worker;
}

void Engine::work(const Context& context, Worker& worker) {
  DeviceKind& kind = DeviceKind::of(context.dev_type);
  kind.enter(context.dev_id);
  const auto stream = kind.make_stream(context.dev_id);
  while (true) {
    std::unique_lock<std::mutex> lock(worker.mutex);
    worker.wake.wait(lock, [&] { return worker.stop || !worker.queue.empty(); });
    if (worker.queue.empty()) return;
    Operation* operation = worker.queue.front();
    worker.queue.pop_front();
    lock.unlock();
    execute({context, stream.get(), nullptr, false}, operation);
  }
}

// threaded_engine.h, ExecuteOprBlock and OnStart.
void Engine::execute(const RunContext& run_context, Operation* operation) {
  const OnComplete callback{&Engine::on_complete, this, operation};
  bool run = true;
  {
    const std::lock_guard<std::mutex> lock(finished_mutex_);
    if (shutdown_ && operation->property != Property::kDeleteVar) run = false;
  }
  if (run) {
    const std::lock_guard<std::mutex> lock(errors_mutex_);
    for (const auto* variables : {&operation->reads, &operation->writes}) {
      for (const Variable* variable : *variables) {
        if (operation->error || !variable->error || !*variable->error) continue;
        operation->error = variable->error;
        remember(operation->error);
      }
    }
    run = !operation->error || operation->property == Property::kNoSkip || operation->wait;
  }
  if (!run) {
    if (operation->error && operation->property == Property::kDeleteVar) {
      // An array whose error nobody has read is never freed: MXNet skips its deletion like any
      // other operation. Here it is kept for the end of the process.
      const std::lock_guard<std::mutex> lock(errors_mutex_);
      never_deleted_.push_back(new Operation{std::move(operation->function),
                                             operation->context,
                                             {},
                                             operation->writes,
                                             operation->property,
                                             false});
    }
    callback();
    return;
  }
  try {
    operation->function(run_context, callback);
  } catch (const std::exception&) {
    operation->error = std::make_shared<std::exception_ptr>(std::current_exception());
    callback();
  }
}

// threaded_engine.cc, OnCompleteStatic and OnComplete: on the thread that calls, whichever it is.
void Engine::on_complete(void* engine, void* operation, const void* error) {
  auto* done = static_cast<Operation*>(operation);
  if (error) {
    const char* what = static_cast<const std::runtime_error*>(error)->what();
    done->error = std::make_shared<std::exception_ptr>(std::make_exception_ptr(Error(what)));
  }
  static_cast<Engine*>(engine)->complete(done);
}

void Engine::complete(Operation* operation) {
  for (Variable* variable : operation->reads) dispatch(variable->complete_read());
  for (Variable* variable : operation->writes) {
    {
      const std::lock_guard<std::mutex> lock(errors_mutex_);
      if (operation->error && *operation->error) {
        variable->error = operation->error;
        remember(operation->error);
      }
    }
    bool gone = false;
    dispatch(variable->complete_write(&gone));
    if (gone) delete variable;
  }
  {
    const std::lock_guard<std::mutex> lock(finished_mutex_);
    if (--pending_ == 0) finished_.notify_all();
  }
  delete operation;
}

void Engine::dispatch(const std::vector<Operation*>& operations) {
  for (Operation* operation : operations) {
    if (operation->blocked_by.fetch_sub(1) == 1) to_execute(operation, false);
  }
}

// threaded_engine.cc, WaitForVar: the wait is an operation on a worker of cpu(0) too.
void Engine::wait_for(Variable* variable) {
  if (!variable->ready_to_read()) {
    // Owned by both: the waiter may be gone before the notifier has returned.
    struct Signal {
      std::mutex mutex;
      std::condition_variable done;
      bool is_done = false;
    };
    const auto signal = std::make_shared<Signal>();
    push_async(
        [signal](const RunContext&, const OnComplete& on_complete) {
          {
            const std::lock_guard<std::mutex> lock(signal->mutex);
            signal->is_done = true;
          }
          signal->done.notify_all();
          on_complete();
        },
        {}, {variable}, {}, Property::kNormal, true);
    std::unique_lock<std::mutex> lock(signal->mutex);
    signal->done.wait(lock, [&] { return signal->is_done; });
  }
  rethrow(variable);
}

void Engine::wait_for_all() {
  {
    std::unique_lock<std::mutex> lock(finished_mutex_);
    finished_.wait(lock, [this] { return pending_ == 0; });
  }
  std::exception_ptr first;
  {
    const std::lock_guard<std::mutex> lock(errors_mutex_);
    for (const ErrorRef& error : global_errors_) {
      if (!first) first = *error;
      *error = nullptr;
    }
    global_errors_.clear();
  }
  if (first) std::rethrow_exception(first);
}

void Engine::rethrow(Variable* variable) {
  std::exception_ptr error;
  {
    const std::lock_guard<std::mutex> lock(errors_mutex_);
    if (variable->error) std::swap(error, *variable->error);
  }
  if (error) std::rethrow_exception(error);
}

void Engine::notify_shutdown() {
  const std::lock_guard<std::mutex> lock(finished_mutex_);
  shutdown_ = true;
}

void Engine::remember(const ErrorRef& error) {
  if (std::find(global_errors_.begin(), global_errors_.end(), error) == global_errors_.end()) {
    global_errors_.push_back(error);
  }
}

void deduplicate(std::vector<Variable*>* reads, std::vector<Variable*>* writes) {
  for (auto* variables : {reads, writes}) {
    std::sort(variables->begin(), variables->end());
    variables->erase(std::unique(variables->begin(), variables->end()), variables->end());
  }
  const auto is_written = [&](Variable* variable) {
    return std::binary_search(writes->begin(), writes->end(), variable);
  };
  reads->erase(std::remove_if(reads->begin(), reads->end(), is_written), reads->end());
}

}  // namespace gluon_syncbn::host

#include "fake_mxnet/engine.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <future>

namespace gluon_syncbn::fake_mxnet {

struct Operation {
  Engine::Function function;
  mxnet::Context context;
  std::vector<VariablePtr> reads;
  std::vector<VariablePtr> writes;
  mxnet::EngineProperty property;
  bool always;
  std::atomic<std::size_t> blocked_by{0};
  std::shared_ptr<Failure> failure{};
};

void Workers::push(std::function<void()> task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    while (threads_.size() < number_) threads_.emplace_back([this] { work(); });
  }
  wake_.notify_one();
}

void Workers::stop() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    threads.swap(threads_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads) thread.join();
  const std::lock_guard<std::mutex> lock(mutex_);
  stop_ = false;
}

void Workers::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
}

bool Failure::is_taken() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !message_;
}

std::optional<std::string> Failure::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(message_, std::nullopt);
}

bool Variable::append(Operation* operation, bool write) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back({operation, write});
  return waiting_.size() == 1 && !next().empty();
}

std::vector<Operation*> Variable::complete(bool write, const std::shared_ptr<Failure>& failure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (write) {
    writing_ = false;
    if (failure) failure_ = failure;
  } else {
    --reading_;
  }
  return next();
}

std::vector<Operation*> Variable::next() {
  std::vector<Operation*> next;
  while (!waiting_.empty() && !writing_ && !(waiting_.front().write && reading_ > 0)) {
    next.push_back(waiting_.front().operation);
    if (waiting_.front().write) {
      writing_ = true;
    } else {
      ++reading_;
    }
    waiting_.pop_front();
  }
  return next;
}

bool Variable::ready_to_read() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !writing_ && waiting_.empty();
}

std::shared_ptr<Failure> Variable::failure() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_ && !failure_->is_taken() ? failure_ : nullptr;
}

Engine& Engine::get() {
  static Engine engine;
  return engine;
}

Engine::Engine() {
  constexpr int kDevices = 8;
  for (int i = 0; i < kDevices; ++i) {
    cpus_.emplace_back(1);  // MXNET_CPU_WORKER_NTHREADS
    gpus_.emplace_back(2);  // MXNET_GPU_WORKER_NTHREADS
  }
  // As MXNet, which starts its threads again in parent and child.
  pthread_atfork([] { get().stop(); }, nullptr, nullptr);
}

void Engine::stop() {
  custom_operators_.stop();
  prioritized_.stop();
  for (auto* workers : {&cpus_, &gpus_}) {
    for (Workers& of_one : *workers) of_one.stop();
  }
}

void Engine::push(Function function, const mxnet::Context& context, std::vector<VariablePtr> reads,
                  std::vector<VariablePtr> writes, mxnet::EngineProperty property, bool always) {
  pushes_.fetch_add(1, std::memory_order_relaxed);
  pending_.fetch_add(1, std::memory_order_relaxed);
  auto* operation = new Operation{std::move(function), context,  std::move(reads),
                                  std::move(writes),   property, always};
  // The one more is this function, lest the operation run before it is known everywhere.
  operation->blocked_by = operation->reads.size() + operation->writes.size() + 1;
  std::size_t granted = 1;
  for (const auto& variable : operation->reads) granted += variable->append(operation, false);
  for (const auto& variable : operation->writes) granted += variable->append(operation, true);
  if (operation->blocked_by.fetch_sub(granted) == granted) to_execute(operation, true);
}

/// An asynchronous operation runs on the thread that pushes it if nothing holds it back; whatever
/// else, on a worker of its context. All CPU contexts share those of prioritized operations.
void Engine::to_execute(Operation* operation, bool on_pushing_thread) {
  if (on_pushing_thread && operation->property == mxnet::kAsync) return execute(operation);
  auto& workers = operation->context.dev_type == mxnet::kGPUContext ? gpus_ : cpus_;
  Workers& chosen = operation->property == mxnet::kCPUPrioritized
                        ? prioritized_
                        : workers.at(static_cast<std::size_t>(operation->context.dev_id));
  chosen.push([this, operation] { execute(operation); });
}

void Engine::execute(Operation* operation) {
  for (const auto* variables : {&operation->reads, &operation->writes}) {
    for (const auto& variable : *variables) {
      if (!operation->failure) operation->failure = variable->failure();
    }
  }
  const mxnet::OnComplete callback{&Engine::on_complete, this, operation};
  if (operation->failure && !operation->always) return complete(callback);
  operation->function(callback);
}

/// On whichever thread calls.
void Engine::on_complete(void* engine, void* operation, const void* error) {
  Engine& self = *static_cast<Engine*>(engine);
  // Goes at the end, with what the variables keep.
  const std::unique_ptr<Operation> done(static_cast<Operation*>(operation));
  if (error) {
    done->failure =
        std::make_shared<Failure>(static_cast<const std::runtime_error*>(error)->what());
    const int now = ++self.failing_;
    self.most_failing_ = std::max<int>(self.most_failing_, now);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --self.failing_;
  }
  for (const auto& variable : done->reads) self.dispatch(variable->complete(false, nullptr));
  for (const auto& variable : done->writes) self.dispatch(variable->complete(true, done->failure));
  self.pending_.fetch_sub(1, std::memory_order_release);
}

void Engine::dispatch(const std::vector<Operation*>& operations) {
  for (Operation* operation : operations) {
    if (operation->blocked_by.fetch_sub(1) == 1) to_execute(operation, false);
  }
}

/// The wait is an operation on a worker of cpu(0) too.
void Engine::wait_for(const VariablePtr& variable) {
  if (!variable->ready_to_read()) {
    const auto reached = std::make_shared<std::promise<void>>();
    auto future = reached->get_future();
    push(
        [reached](const mxnet::OnComplete& on_complete) {
          reached->set_value();
          complete(on_complete);
        },
        {mxnet::kCPUContext, 0}, {variable}, {}, mxnet::kNormal, true);
    future.wait();
  }
  if (const auto failure = variable->failure()) {
    if (const auto message = failure->take()) throw Error(*message);
  }
}

void Engine::wait_for_all() {
  while (pending_.load(std::memory_order_acquire) > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace gluon_syncbn::fake_mxnet

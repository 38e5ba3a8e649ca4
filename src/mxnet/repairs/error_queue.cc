#include "mxnet/repairs/error_queue.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "common/per_process.h"

namespace gluon_syncbn::mxnet {
namespace {

using Clock = std::chrono::steady_clock;

// A failure takes this long only if CustomOperatorWait takes another error of MXNet first. Our
// output then keeps its error.
constexpr std::chrono::seconds kPatience{1};

/// AddToGlobalExceptions searches and extends a std::vector of errors.
///
/// The queue lets only one operator at a time extend the vector. But operations that depend on a
/// failed operation search the vector on other threads. They would read freed memory if the vector
/// moved to larger memory. So make_room() adds many errors before the first real one, and reads
/// each at once. MXNet removes them at mx.nd.waitall() and keeps the memory.
void make_room() {
  // A std::vector doubles its memory, so that one error more than 4096 makes room for 8192.
  constexpr int kErrors = 4097;
  try {
    const NDArray array = NDArray::on_cpu(1, kFloat32);
    for (int i = 0; i < kErrors; ++i) {
      push({"cpu", 0}, {}, {array.handle()}, "SyncBatchNormMakeRoom", kAsync,
           [](const Completion& completion) { completion.fail("makes room for errors"); });
      api().NDArrayWaitToRead(array.handle());
    }
  } catch (const std::exception&) {
    // Without room, failures work but for the rare read of freed memory.
  }
}

}  // namespace

/// Finds out when a custom operator has failed, and then starts the next failure.
///
/// After an operator's callback, MXNet pushes an operation CustomOperatorWait, which takes the
/// error from the output array and fails the operator (mxnet/src/operator/custom/custom-inl.h). As
/// long as the array has its error, the engine skips all operations that write it. So an attempt
/// pushes such an operation again and again: the first operation that runs comes after
/// CustomOperatorWait.
class ErrorQueue::Attempt {
 public:
  static void start(const std::shared_ptr<const NDArray>& output, Clock::time_point give_up) {
    while (true) {
      const auto attempt = std::make_shared<Attempt>();
      try {
        const auto guard = std::make_shared<Guard>(attempt, output, give_up);
        push({"cpu", 0}, {}, {output->handle()}, "SyncBatchNormNextError", kCPUPrioritized,
             [guard](const Completion& completion) {
               guard->attempt->over_ = true;
               completion.succeed();
             });
      } catch (const std::exception&) {
        attempt->over_ = true;
      }
      if (!attempt->leave()) return;  // The engine still has the operation, and its guard goes on.
      if (attempt->over_ || Clock::now() > give_up) return instance().fail_next();
      std::this_thread::yield();  // lets the custom operator run
    }
  }

 private:
  /// Owned by the operation. The engine destroys it after the operation, even if it skips the
  /// operation.
  struct Guard {
    Guard(std::shared_ptr<Attempt> of, std::shared_ptr<const NDArray> array,
          Clock::time_point until)
        : attempt(std::move(of)), output(std::move(array)), give_up(until) {}
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

    ~Guard() {
      if (!attempt->leave()) return;  // start() is still pushing the operation, and goes on.
      if (attempt->over_ || Clock::now() > give_up) {
        instance().fail_next();
      } else {
        std::this_thread::yield();
        start(output, give_up);
      }
    }

    const std::shared_ptr<Attempt> attempt;
    const std::shared_ptr<const NDArray> output;
    const Clock::time_point give_up;
  };

  /// Called by start() after the push, and by the destructor of the guard. Returns true to the
  /// second of the two, which goes on.
  ///
  /// The destructor cannot always go on. The engine may skip an operation during its push, so that
  /// the destructor would push the next operation from within that push, deeper and deeper.
  bool leave() { return present_.fetch_sub(1) == 1; }

  std::atomic<bool> over_{false};
  std::atomic<int> present_{2};
};

ErrorQueue& ErrorQueue::instance() { return PerProcess<ErrorQueue>::instance(); }

void ErrorQueue::add(NDArray output, const Completion& completion, const std::string& message) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back({std::move(output), completion, message});
    if (std::exchange(busy_, true)) return;
  }
  fail_next();
}

void ErrorQueue::wait_until_idle() {
  std::unique_lock<std::mutex> lock(mutex_);
  idle_.wait_for(lock, 10 * kPatience, [this] { return !busy_; });
}

void ErrorQueue::fail_next() {
  std::unique_lock<std::mutex> lock(mutex_);
  busy_ = !waiting_.empty();
  if (!busy_) return idle_.notify_all();
  Failure next = std::move(waiting_.front());
  waiting_.pop_front();
  lock.unlock();
  if (!std::exchange(has_room_, true)) make_room();
  next.completion.fail(next.message);
  Attempt::start(std::make_shared<const NDArray>(std::move(next.output)), Clock::now() + kPatience);
}

}  // namespace gluon_syncbn::mxnet

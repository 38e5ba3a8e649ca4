#include "mxnet/error_queue.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "common/per_process.h"

namespace gluon_syncbn::mxnet {
namespace {

using Clock = std::chrono::steady_clock;

// Only the error of another operator, which MXNet may take for that of ours, makes it take so long.
constexpr std::chrono::seconds kPatience{1};

/// What depends on a failed operation looks into MXNet's list on its own thread while the next one
/// adds to it, which must then not move to larger memory. So the list grows in advance, by errors
/// that are taken at once; it keeps them until mx.nd.waitall(), and the memory for good.
void make_room() {
  constexpr int kErrors = 4097;  // doubling its memory, the list has room for 8192 then
  const std::int64_t length = 1;
  NDArrayHandle handle = nullptr;
  const int status = api().NDArrayCreate64(&length, 1, kCPUContext, 0, 0, kFloat32, &handle);
  if (status != 0) return;
  const NDArray array(handle);
  for (int i = 0; i < kErrors; ++i) {
    push({"cpu", 0}, {}, {handle}, "SyncBatchNormMakeRoom", kAsync,
         [](const Completion& completion) { completion.fail("makes room for errors"); });
    api().NDArrayWaitToRead(handle);
  }
}

}  // namespace

/// To run an operation behind the failure of a custom operator, whose own operation on the array
/// may not have been pushed yet. That one reads the array, takes the error from it, and fails the
/// operator; until then the engine skips what writes the array. So the first operation that writes
/// it and is not skipped comes behind.
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
      if (!attempt->leave()) return;  // the operation is still there
      if (attempt->over_ || Clock::now() > give_up) return instance().fail_next();
      std::this_thread::yield();  // to the custom operator
    }
  }

 private:
  /// Goes with the operation, which the engine destroys if it skips it too.
  struct Guard {
    Guard(std::shared_ptr<Attempt> of, std::shared_ptr<const NDArray> array,
          Clock::time_point until)
        : attempt(std::move(of)), output(std::move(array)), give_up(until) {}
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

    ~Guard() {
      if (!attempt->leave()) return;  // whoever has pushed it goes on
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

  /// Whether the caller, who has pushed the operation or destroys it, is the second to leave. That
  /// one goes on: if it were always the destructor, operations that are skipped while they are
  /// pushed would push the next from within, deeper and deeper.
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

std::string wait_for_all(const Interruption& interruption) {
  Watchdog::instance().interrupt_when_idle(interruption);
  const bool is_clean = api().NDArrayWaitAll() == 0;
  std::string error = is_clean ? "" : api().GetLastError();
  // What comes behind the last failure is also an operation, and may have an error to be read.
  ErrorQueue::instance().wait_until_idle();
  if (api().NDArrayWaitAll() != 0 && error.empty()) error = api().GetLastError();
  Watchdog::instance().interrupt_when_idle(std::nullopt);
  return error;
}

}  // namespace gluon_syncbn::mxnet

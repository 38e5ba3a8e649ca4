#include "mxnet/error_queue.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
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
  constexpr int kErrors = 257;  // doubling its memory, the list has room for 512 then
  const std::int64_t length = 1;
  NDArrayHandle handle = nullptr;
  const int status = api().NDArrayCreateEx64(&length, 1, kCPUContext, 0, 0, kFloat32, &handle);
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
  static void start(std::shared_ptr<const NDArray> output, Clock::time_point give_up) {
    const NDArrayHandle handle = output->handle();
    const auto attempt = std::make_shared<Attempt>(std::move(output), give_up);
    try {
      push({"cpu", 0}, {}, {handle}, "SyncBatchNormNextError", kCPUPrioritized,
           [attempt](const Completion& completion) {
             attempt->over_ = true;
             completion.succeed();
           });
    } catch (const std::exception&) {
      attempt->over_ = true;
    }
  }

  Attempt(std::shared_ptr<const NDArray> output, Clock::time_point give_up)
      : output_(std::move(output)), give_up_(give_up) {}
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  /// The engine destroys a skipped operation too.
  ~Attempt() {
    if (over_ || Clock::now() > give_up_) {
      instance().fail_next();
    } else {
      start(std::move(output_), give_up_);
    }
  }

 private:
  std::shared_ptr<const NDArray> output_;
  const Clock::time_point give_up_;
  bool over_ = false;
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

void ErrorQueue::fail_next() {
  std::unique_lock<std::mutex> lock(mutex_);
  busy_ = !waiting_.empty();
  if (!busy_) return;
  Failure next = std::move(waiting_.front());
  waiting_.pop_front();
  lock.unlock();
  if (!std::exchange(has_room_, true)) make_room();
  next.completion.fail(next.message);
  Attempt::start(std::make_shared<const NDArray>(std::move(next.output)), Clock::now() + kPatience);
}

}  // namespace gluon_syncbn::mxnet

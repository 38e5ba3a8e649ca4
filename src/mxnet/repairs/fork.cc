#include "mxnet/repairs/fork.h"

#include <pthread.h>

#include <atomic>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "common/report.h"
#include "mxnet/dtype.h"
#include "mxnet/engine.h"
#include "mxnet/ndarray.h"
#include "mxnet/wait_for_all.h"

namespace gluon_syncbn::mxnet {
namespace {

std::atomic<LiveArrays> the_live_arrays{nullptr};

/// Keeps unread errors across a fork.
///
/// MXNet has no list of the arrays with errors. So
/// UnreadErrors visits all arrays that the program holds, and writes to each. After the fork it
/// fails those that the engine did not let it write.
class UnreadErrors {
 public:
  /// Must come before take(), which removes the errors.
  void note_arrays() {
    if (const LiveArrays live_arrays = the_live_arrays.load()) live_arrays(&note);
  }

  void take() { error_ = wait_for_all({kForked, Missing::kCalls, Absent::kMayCome}); }

  void fail_again() {
    const auto arrays = std::move(arrays_);
    const std::string error = std::move(error_);
    arrays_.clear();
    error_.clear();
    if (error.empty()) return;
    // All arrays get the first error that WaitForAll has found. They share it, so a thread that
    // reads it removes it from all. The source fails in any case, so that waitall() raises the
    // error even if the program holds no array with it.
    const NDArray source = NDArray::on_cpu(1, kFloat32);
    push({"cpu", 0}, {}, {source.handle()}, "SyncBatchNormUnreadError", kAsync,
         [&](const Completion& completion) { completion.fail(error); });
    for (const Array& each : arrays) {
      if (*each.was_written) continue;
      // The engine skips this operation, because its input has an error, and fails its output.
      push({"cpu", 0}, {source.handle()}, {each.array.handle()}, "SyncBatchNormUnreadError", kAsync,
           [](const Completion& completion) { completion.succeed(); });
    }
  }

 private:
  struct Array {
    NDArray array;
    std::shared_ptr<bool> was_written;
  };

  static void note(NDArrayHandle handle);

  std::vector<Array> arrays_;
  std::string error_;
};

// Per thread, because all handlers of a fork run on the thread that forks.
thread_local UnreadErrors the_errors;

void UnreadErrors::note(NDArrayHandle handle) {
  NDArrayHandle own = nullptr;
  if (api().NDArrayDetach(handle, &own) != 0) return;
  Array each{NDArray(own), std::make_shared<bool>(false)};
  if (each.array.dtype() == kUnknownDType) return;  // The handle has no array.
  // The engine skips operations on an array that has an error.
  push({"cpu", 0}, {own}, {}, "SyncBatchNormNoteError", kAsync,
       [was_written = each.was_written](const Completion& completion) {
         *was_written = true;
         completion.succeed();
       });
  the_errors.arrays_.push_back(std::move(each));
}

template <class Task>
void or_print(const Task& task) noexcept {
  try {
    task();
  } catch (const std::exception& error) {
    report(std::string("error at a fork: ") + error.what());
  }
}

// How many times `before` has been called for the fork under way: the handlers are registered once
// more for each call of run_before_later_fork_handlers().
thread_local int the_depth = 0;

void before() {
  if (the_depth++ > 0) return;
  or_print([] { the_errors.note_arrays(); });
  or_print([] { the_errors.take(); });
}

void after() {
  if (--the_depth > 0) return;
  or_print([] { the_errors.fail_again(); });
}

void register_handlers() {
  if (pthread_atfork(&before, &after, &after) != 0) throw std::bad_alloc();  // its only error
}

}  // namespace

// MXNet registers its handlers first, so that `before` runs before MXNet's handler and `after` runs
// after it.
void survive_forks(LiveArrays live_arrays) {
  if (!the_live_arrays.exchange(live_arrays)) register_handlers();
}

void run_before_later_fork_handlers() {
  if (the_live_arrays) register_handlers();
}

void forget_live_arrays() { the_live_arrays = nullptr; }

}  // namespace gluon_syncbn::mxnet

#include "mxnet/fork.h"

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
#include "mxnet/error_queue.h"
#include "mxnet/ndarray.h"

namespace gluon_syncbn::mxnet {
namespace {

std::atomic<LiveArrays> the_live_arrays{nullptr};

/// Waiting for all operations takes the errors from all arrays, which would then pass for written.
/// This notes which arrays have one, and fails them again.
class UnreadErrors {
 public:
  /// To be called before take().
  void note_arrays() {
    if (const LiveArrays live_arrays = the_live_arrays.load()) live_arrays(&note);
  }

  void take() { error_ = wait_for_all({kForked, true}); }

  void fail_again() {
    const auto arrays = std::move(arrays_);
    const std::string error = std::move(error_);
    arrays_.clear();
    error_.clear();
    if (error.empty()) return;
    // One error for all, as before: who reads it takes it from all. Arrays get it as results of an
    // operation that the engine skips; there is one even if the program holds none of them.
    const NDArray source = NDArray::on_cpu(1, kFloat32);
    push({"cpu", 0}, {}, {source.handle()}, "SyncBatchNormUnreadError", kAsync,
         [&](const Completion& completion) { completion.fail(error); });
    for (const Array& each : arrays) {
      if (*each.was_written) continue;
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

// The handlers of one fork all run on the thread that forks.
thread_local UnreadErrors the_errors;

void UnreadErrors::note(NDArrayHandle handle) {
  NDArrayHandle own = nullptr;
  if (api().NDArrayDetach(handle, &own) != 0) return;
  Array each{NDArray(own), std::make_shared<bool>(false)};
  if (each.array.dtype() == kUnknownDType) return;  // an empty handle
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

void before() {
  or_print([] { the_errors.note_arrays(); });
  or_print([] { the_errors.take(); });
}

void after() {
  or_print([] { the_errors.fail_again(); });
}

}  // namespace

// Before a fork, MXNet ends the threads of custom operators and then waits for all operations (in
// its initialize.cc). One that calls a custom operator in between would wait forever, or crash. And
// an error that it finds then ends the process. MXNet has registered its handlers before these, so
// that `before` is called before MXNet's and `after` behind.
void survive_forks(LiveArrays live_arrays) {
  the_live_arrays = live_arrays;
  static const int status = pthread_atfork(&before, &after, &after);
  if (status != 0) throw std::bad_alloc();  // its only error
}

void forget_live_arrays() { the_live_arrays = nullptr; }

}  // namespace gluon_syncbn::mxnet

// Fault: the list of all errors has no lock (AddToGlobalExceptions in
//   mxnet/src/engine/threaded_engine.h). A custom operator that fails adds an error on a worker of
//   its device, after the operation that its callback has pushed
//   (mxnet/src/operator/custom/custom-inl.h).
// Met by: a round that fails on several devices at the same time.
// Without this file: the process can crash.
// Delete it when AddToGlobalExceptions takes a lock.

#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>

#include "mxnet/engine.h"
#include "mxnet/ndarray.h"

namespace gluon_syncbn::mxnet {

/// Makes custom operators fail one after the other.
class ErrorQueue {
 public:
  static ErrorQueue& instance();

  /// Fails an operation after the custom operators that were added before. `output` is an array
  /// that the operation writes.
  void add(NDArray output, const Completion& completion, const std::string& message);

  /// Returns when no custom operator is left to fail and the last failure is complete. Returns
  /// after ten seconds in any case, because the end of a process must not hang.
  void wait_until_idle();

 private:
  struct Failure {
    NDArray output;
    Completion completion;
    std::string message;
  };
  class Attempt;

  void fail_next();

  std::mutex mutex_;
  std::condition_variable idle_;
  bool busy_ = false;
  bool has_room_ = false;
  std::deque<Failure> waiting_;
};

}  // namespace gluon_syncbn::mxnet

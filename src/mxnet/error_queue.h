#ifndef GLUON_SYNCBN_MXNET_ERROR_QUEUE_H_
#define GLUON_SYNCBN_MXNET_ERROR_QUEUE_H_

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>

#include "common/watchdog.h"
#include "mxnet/engine.h"
#include "mxnet/ndarray.h"

namespace gluon_syncbn::mxnet {

/// Lets custom operators fail one after the other.
///
/// MXNet keeps all errors in a list without a lock (AddToGlobalExceptions in its
/// threaded_engine.h). A custom operator that fails adds to it on a worker of its device, after the
/// operation that its callback has pushed (custom-inl.h). If several did so at the same time, as
/// the devices of a round would, the process could crash.
class ErrorQueue {
 public:
  static ErrorQueue& instance();

  /// Fails an operation that writes `output`, one of the arrays of the callback that has pushed it,
  /// as soon as the custom operators before it have failed.
  void add(NDArray output, const Completion& completion, const std::string& message);

  /// Returns when no custom operator is left to fail, nor what comes behind the last of them;
  /// or after ten seconds, because the end of a process must not hang.
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

/// Waits for all operations of the engine and for the ErrorQueue. What waits for calls that nobody
/// makes meanwhile is interrupted. Returns the first error that nobody had read, or "".
std::string wait_for_all(const Interruption& interruption);

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_ERROR_QUEUE_H_

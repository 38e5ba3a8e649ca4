#ifndef GLUON_SYNCBN_MXNET_ARRAY_BLOCKER_H_
#define GLUON_SYNCBN_MXNET_ARRAY_BLOCKER_H_

#include <memory>
#include <mutex>
#include <optional>

#include "mxnet/engine.h"

namespace gluon_syncbn::mxnet {

/// Keeps an array busy, as an operation that has not finished does, until destroyed.
class ArrayBlocker {
 public:
  explicit ArrayBlocker(NDArrayHandle array);
  ~ArrayBlocker();
  ArrayBlocker(const ArrayBlocker&) = delete;
  ArrayBlocker& operator=(const ArrayBlocker&) = delete;

 private:
  struct State {
    std::mutex mutex;
    bool released = false;
    std::optional<Completion> completion;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// Whether all operations that write `array` have finished.
bool is_ready(NDArrayHandle array);

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_ARRAY_BLOCKER_H_

#include "mxnet/array_blocker.h"

#include <atomic>

namespace gluon_syncbn::mxnet {
namespace {

const Device kAnyDevice{"cpu", 0};

}  // namespace

ArrayBlocker::ArrayBlocker(NDArrayHandle array) {
  push(kAnyDevice, {}, {array}, "SyncBatchNormHold", kAsync,
       [state = state_](const Completion& completion) {
         const std::lock_guard<std::mutex> lock(state->mutex);
         if (state->released) {
           completion.succeed();
         } else {
           state->completion = completion;
         }
       });
}

ArrayBlocker::~ArrayBlocker() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->released = true;
  if (state_->completion) state_->completion->succeed();
}

bool is_ready(NDArrayHandle array) {
  // An asynchronous operation runs inside the push where nothing holds it back.
  const auto ran = std::make_shared<std::atomic<bool>>(false);
  push(kAnyDevice, {array}, {}, "SyncBatchNormIsReady", kAsync,
       [ran](const Completion& completion) {
         *ran = true;
         completion.succeed();
       });
  return *ran;
}

}  // namespace gluon_syncbn::mxnet

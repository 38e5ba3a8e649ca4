#ifndef GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_IMPERATIVE_H_
#define GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_IMPERATIVE_H_

#include <string>
#include <utility>
#include <vector>

#include "fake_mxnet/ndarray.h"
#include "fake_mxnet/types.h"

namespace gluon_syncbn::host {

/// Flags of the calling thread (imperative.h, Imperative::is_recording and is_training).
bool is_recording();
bool is_training();
bool set_recording(bool value);
bool set_training(bool value);

/// Sets both flags for as long as it lives.
class Recording {
 public:
  Recording(bool recording, bool training)
      : recording_(set_recording(recording)), training_(set_training(training)) {}
  ~Recording() {
    set_recording(recording_);
    set_training(training_);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  const bool recording_;
  const bool training_;
};

/// Runs one Custom operator and records it where a graph is being recorded (c_api_ndarray.cc,
/// MXImperativeInvokeImpl; imperative.cc, Invoke, InvokeOp and RecordOp).
std::vector<NDArray*> invoke(const std::vector<NDArray*>& inputs,
                             const std::vector<std::pair<std::string, std::string>>& attributes);

/// imperative.cc, MarkVariables.
void mark_variable(NDArray* variable, OpReq request, NDArray* gradient);

/// Gradients of all marked variables that `outputs` depend on (imperative.cc, Backward).
void backward(const std::vector<NDArray*>& outputs, const std::vector<NDArray*>& output_gradients,
              bool retain_graph, bool is_train);

}  // namespace gluon_syncbn::host

#endif  // GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_IMPERATIVE_H_

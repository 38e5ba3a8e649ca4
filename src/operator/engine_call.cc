#include "operator/engine_call.h"

#include <exception>
#include <utility>

#include "common/error.h"
#include "mxnet/dtype.h"
#include "mxnet/repairs/error_queue.h"
#include "sync/failed_steps.h"

namespace gluon_syncbn::op {

using namespace mxnet;

EngineCall::EngineCall(std::shared_ptr<Operator> op, std::vector<NDArray> arrays,
                       std::vector<std::size_t> outputs, std::vector<std::size_t> results)
    : op_(std::move(op)),
      arrays_(std::move(arrays)),
      outputs_(std::move(outputs)),
      results_(std::move(results)) {}

void EngineCall::push(const char* name) {
  std::vector<NDArrayHandle> handles;
  for (const std::size_t position : outputs_) handles.push_back(arrays_[position].handle());
  // MXNet calls custom operators on threads of their own. To launch kernels there is faster than to
  // wake a worker. A pass of the CPU runs on the worker of its context.
  const EngineProperty property = op_->device_.type == "gpu" ? kAsync : kNormal;
  const auto self = shared_from_this();
  mxnet::push(op_->device_, {}, handles, name, property, [self](const Completion& completion) {
    self->completion_ = completion;
    try {
      self->run();
    } catch (const std::exception& error) {
      self->complete(error.what());
    }
  });
  // NaiveEngine has run the operation inside push() and drops its error.
  static const bool is_naive = is_engine("NaiveEngine");
  if (is_naive && !error_.empty()) throw Error(error_);
}

void EngineCall::complete(const std::string& error) {
  // MXNet may free or reuse the memory of the arrays as soon as the operation has completed.
  if (error.empty()) {
    arrays_.clear();
    return completion_->succeed();
  }
  fill_results_with_nan();
  NDArray output = std::move(arrays_[outputs_.front()]);
  arrays_.clear();
  const std::string layer = op_->attributes_.layer();
  error_ = error.compare(0, layer.size(), layer) == 0 ? error : layer + ": " + error;
  if (is_training()) FailedSteps::instance().add(error_, op_->failures_before_);
  ErrorQueue::instance().add(std::move(output), *completion_, error_);
}

/// MXNet forgets an error once it has been read. Later operations would then compute with memory
/// that no operation has written.
void EngineCall::fill_results_with_nan() const noexcept {
  try {
    for (const std::size_t position : results_) {
      op_->backend_.fill_with_nan(op_->device_.index, data(position), arrays_[position].bytes());
    }
  } catch (const std::exception&) {
    // The device is lost, and its arrays with it. The call has an error already.
  }
}

const void* EngineCall::gamma(std::size_t position) const {
  return op_->attributes_.fix_gamma ? nullptr : data(position);
}

ArrayKind EngineCall::kind_of(const NDArray& array) const {
  const auto shape = array.shape();
  return {dtype_of(array.dtype()), Layout::of(shape, op_->attributes_.axis_of(shape.size()))};
}

PassPtr EngineCall::begin(Work work) {
  return op_->backend_.begin(
      op_->device_.index, std::move(work),
      [self = shared_from_this()](const std::string& error) { self->complete(error); });
}

WriteMode write_of(OpReq request) { return request == kAdd ? WriteMode::kAdd : WriteMode::kAssign; }

}  // namespace gluon_syncbn::op

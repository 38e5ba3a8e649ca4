// A backward pass on one device, from MXNet's callback to the completion.

#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/list_text.h"
#include "mxnet/dtype.h"
#include "norm/variants.h"
#include "operator/engine_call.h"
#include "operator/operator.h"
#include "sync/barrier.h"
#include "sync/failed_steps.h"

namespace gluon_syncbn::op {

using namespace mxnet;

namespace {

/// MXNet checks all arrays except the head gradient, which users give to backward().
void require_like_data(const NDArray& head_gradient, const NDArray& data) {
  const auto text = [](const NDArray& array) {
    return std::string(dtype_name(array.dtype())) + " of shape (" + number_list(array.shape()) +
           ")";
  };
  if (head_gradient.dtype() == data.dtype() && head_gradient.shape() == data.shape()) return;
  throw Error("the gradient of the output is " + text(head_gradient) + " but the output is " +
              text(data));
}

}  // namespace

class BackwardCall : public EngineCall {
 public:
  BackwardCall(std::shared_ptr<Operator> op, std::vector<NDArray> arrays,
               std::vector<std::size_t> outputs, std::vector<std::size_t> results,
               std::vector<OpReq> requests)
      : EngineCall(std::move(op), std::move(arrays), std::move(outputs), std::move(results)),
        at_(op_->positions_.backward()),
        reads_(reads_of(op_->attributes_.dz_from())),
        requests_(std::move(requests)) {}

 private:
  void run() override {
    if (!op_->saved_) {
      throw Error(op_->forward_error_.empty()
                      ? "backward without a forward pass that succeeded"
                      : "backward of a forward pass that failed: " + op_->forward_error_);
    }
    op_->may_be_repeated_ = 0;
    op_->node_calls_->end(op_->device_, op_);
    const auto round = op_->round_;
    if (!round) return finish_alone(begin(work()));
    Barrier& barrier = *op_->barrier_;
    const auto place = barrier.next_backward(round, op_->device_);
    PassPtr pass;
    try {
      if (barrier.options().processes) {
        FailedSteps::instance().require_none_since(op_->failures_before_);
      }
      pass = begin(work());
    } catch (const std::exception& error) {
      barrier.fail(place, failed_on(op_->device_, error.what()));
      throw;
    }
    barrier.arrive(place, op_->device_, pass);
  }

  /// An array with the shape and dtype of the input, which may have been freed.
  const NDArray& like_data() const { return array(reads_.data ? at_[kData] : at_.out()); }

  Backward work() const {
    require_like_data(array(at_.out_gradient()), like_data());
    Backward work;
    work.kind = kind_of(like_data());
    work.dy = data(at_.out_gradient());
    work.saved = *op_->saved_;
    work.gamma = gamma(at_[kGamma]);
    work.activation = op_->attributes_.activation;
    work.dz_from = op_->attributes_.dz_from();
    if (reads_.data) work.x = data(at_[kData]);
    if (reads_.beta) work.beta = data(at_[kBeta]);
    if (reads_.output) work.y = data(at_.out());
    work.gradients = gradients();
    return work;
  }

  Gradients gradients() const {
    const auto write = [&](Argument argument) { return write_of(requests_[argument]); };
    const auto wanted = [&](Argument argument) -> void* {
      return requests_[argument] == kNull ? nullptr : data(at_.gradient(argument));
    };
    // The trainer sums the gradients of parameters over devices, so each device gives its own
    // share.
    Gradients gradients;
    gradients.fix_gamma = op_->attributes_.fix_gamma;
    gradients.write_gamma = write(kGamma);
    gradients.gamma = wanted(kGamma);
    gradients.write_beta = write(kBeta);
    gradients.beta = wanted(kBeta);
    gradients.write_data = write(kData);
    gradients.data = wanted(kData);
    if (op_->attributes_.shortcut) {
      gradients.write_shortcut = write(kShortcut);
      gradients.shortcut = wanted(kShortcut);
    }
    return gradients;
  }

  const Positions::Backward at_;
  const BackwardReads reads_;
  const std::vector<OpReq> requests_;  // by argument
};

void Operator::backward(std::vector<NDArray> arrays, const int* requests) {
  std::vector<OpReq> of_arguments;
  std::vector<std::size_t> outputs;
  std::vector<std::size_t> results;
  for (std::size_t i = 0; i < positions_.arguments(); ++i) {
    of_arguments.push_back(static_cast<OpReq>(requests[i]));
    outputs.push_back(positions_.backward().gradient(static_cast<Argument>(i)));
    if (of_arguments.back() != kNull) results.push_back(outputs.back());
  }
  std::make_shared<BackwardCall>(shared_from_this(), std::move(arrays), std::move(outputs),
                                 std::move(results), std::move(of_arguments))
      ->push("SyncBatchNormBackward");
}

}  // namespace gluon_syncbn::op

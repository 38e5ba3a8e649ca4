// A forward pass on one device, from MXNet's callback to the completion.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/per_process.h"
#include "common/report.h"
#include "mxnet/dtype.h"
#include "norm/variants.h"
#include "operator/engine_call.h"
#include "operator/operator.h"
#include "sync/barrier.h"
#include "sync/failed_steps.h"

namespace gluon_syncbn::op {

using namespace mxnet;

namespace {

/// Unlike __force_mirroring__, the variable does not say which operators MXNet repeats in backward.
void require_no_mirroring() {
  const char* value = std::getenv("MXNET_BACKWARD_DO_MIRROR");
  if (value && std::atoi(value) != 0) {
    throw Error(std::string("environment variable MXNET_BACKWARD_DO_MIRROR=") + value +
                " lets MXNet run the layer a second time in backward, which would update the "
                "running statistics twice; unset it (on Gluon networks it has no effect)");
  }
}

/// MXNet has no gradient for a body with auxiliary states, and cond would wait for this pass before
/// the program can call the next device.
void require_no_body(const Attributes& attributes) {
  if (!attributes.is_in_body) return;
  throw Error(
      "MXNet cannot train a norm in the body of control flow (foreach, while_loop, cond) of a "
      "graph. Do not hybridize the block that calls the layer");
}

struct Frozen {
  std::atomic<bool> may_warn{false};
  std::mutex mutex;
  bool has_warned = false;     // guarded by the mutex
  std::set<std::string> keys;  // guarded by the mutex
};

/// MXNet's BatchNorm moves its running statistics in backward, which does not reach a network whose
/// parameters are all frozen. Printed once, because such networks have many norms.
void warn_of_frozen(const Attributes& attributes) {
  auto& frozen = PerProcess<Frozen>::instance();
  if (!frozen.may_warn) return;
  const std::lock_guard<std::mutex> lock(frozen.mutex);
  if (frozen.has_warned || frozen.keys.count(attributes.key) == 0) return;
  frozen.has_warned = true;
  frozen.may_warn = false;
  report("warning: " + attributes.layer() +
         " is called in training, and its gamma and beta are frozen (grad_req='null'). Its running "
         "statistics move, where those of BatchNorm stay if all parameters before it are frozen "
         "too. To keep them, call the frozen part without training (autograd.predict_mode()), or "
         "set use_global_stats=True in its layers.");
}

}  // namespace

void set_frozen(const std::string& key, bool is_frozen) {
  auto& frozen = PerProcess<Frozen>::instance();
  const std::lock_guard<std::mutex> lock(frozen.mutex);
  if (is_frozen) {
    frozen.keys.insert(key);
  } else {
    frozen.keys.erase(key);
  }
  frozen.may_warn = !frozen.has_warned && !frozen.keys.empty();
}

class ForwardCall : public EngineCall {
 public:
  ForwardCall(std::shared_ptr<Operator> op, std::vector<NDArray> arrays,
              std::vector<std::size_t> outputs, std::vector<std::size_t> results, OpReq request,
              bool is_train)
      : EngineCall(std::move(op), std::move(arrays), std::move(outputs), std::move(results)),
        at_(op_->positions_.forward()),
        request_(request),
        is_train_(is_train) {}

  void complete(const std::string& error) override {
    if (error.empty()) {
      op_->saved_ = saved_;
      op_->round_ = round_;
    } else {
      op_->forward_error_ = error;
      if (training_began_) training_failed(error);
    }
    EngineCall::complete(error);
  }

 private:
  bool is_training() const override { return is_train_ && !op_->attributes_.use_global_stats; }

  void run() override {
    op_->saved_.reset();
    op_->forward_error_.clear();
    op_->failures_before_ = FailedSteps::instance().passes();
    if (!is_training()) return infer();
    require_no_mirroring();
    require_group();
    require_no_body(op_->attributes_);
    warn_of_frozen(op_->attributes_);
    is_repeated_ = op_->begin_training(data(at_[kMovingMean]), array(at_[kData]).shape());
    if (op_->barrier_) return train_with_others();
    if (op_->attributes_.num_devices == 1) op_->node_calls_->begin_alone(op_->device_);
    finish_alone(begin(training()));
  }

  void train_with_others() {
    const Device& device = op_->device_;
    const Signature signature = this->signature();
    Barrier& barrier = *op_->barrier_;
    const auto epoch = std::exchange(op_->epoch_, std::nullopt);
    const auto place = barrier.join(device, epoch.value_or(Calls::kNow));
    round_ = place.round;
    PassPtr pass;
    try {
      const Forward work = training();
      if (!is_repeated_) {
        op_->node_calls_->begin(device, data(at_[kMovingMean]), op_,
                                std::exchange(op_->ran_before_, true));
      }
      barrier.agree(round_, device, signature);
      pass = begin(work);
    } catch (const std::exception& error) {
      barrier.fail_round(round_, device, error.what());
      throw;
    }
    barrier.arrive(place, device, pass);
  }

  void infer() {
    if (op_->barrier_ && !op_->attributes_.use_global_stats) {
      op_->barrier_->saw_inference(op_->device_);
    }
    Forward work = this->work();
    work.is_inference = true;
    work.running.mean = data(at_[kMovingMean]);
    work.running.variance = data(at_[kMovingVar]);
    finish_alone(begin(work));
  }

  void require_group() const {
    const Attributes& attributes = op_->attributes_;
    if (!attributes.sync_group_size || attributes.group_of(op_->device_.index)) return;
    throw Error("called on " + op_->device_.name() + ", which is in no group: sync_group_size=" +
                std::to_string(attributes.group_size()) + " groups the devices " +
                attributes.device_list());
  }

  Signature signature() const {
    const NDArray& x = array(at_[kData]);
    return {kind_of(x).layout.channels, dtype_name(x.dtype()), op_->attributes_.eps,
            op_->attributes_.momentum};
  }

  Forward training() {
    Forward work = this->work();
    if (!is_repeated_) {  // the first time has moved the running statistics
      work.running = {data(at_[kMovingMean]), data(at_[kMovingVar]), op_->attributes_.momentum,
                      op_->attributes_.momentum ? nullptr : data(at_[kNumBatches])};
    }
    training_began_ = true;
    return work;
  }

  Forward work() {
    const Attributes& attributes = op_->attributes_;
    Forward work;
    work.kind = kind_of(array(at_[kData]));
    work.x = data(at_[kData]);
    work.eps = attributes.eps;
    work.gamma = gamma(at_[kGamma]);
    work.beta = data(at_[kBeta]);
    work.activation = attributes.activation;
    if (attributes.shortcut) work.shortcut = data(at_[kShortcut]);
    work.dz_from = attributes.dz_from();
    work.write = write_of(request_);
    if (reads_of(work.dz_from).output && work.write == WriteMode::kAdd) {
      throw Error("cannot add to what its output holds: backward reads the output");
    }
    work.y = request_ == kNull ? nullptr : data(at_.out());
    work.saved = &saved_;
    return work;
  }

  void training_failed(const std::string& error) {
    if (!round_) return;
    op_->node_calls_->end(op_->device_, op_);
    // If the peers have finished, they would wait for this device in backward.
    op_->barrier_->fail_round(round_, op_->device_, error);
  }

  const Positions::Forward at_;
  const OpReq request_;
  const bool is_train_;
  bool training_began_ = false;
  bool is_repeated_ = false;  // in backward, by mirroring
  Saved saved_;
  std::shared_ptr<Barrier::Round> round_;  // empty if nothing is synchronized
};

bool Operator::begin_training(const void* running_mean, const std::vector<std::int64_t>& data) {
  std::size_t arrays = reinterpret_cast<std::uintptr_t>(running_mean);
  for (const std::int64_t size : data) arrays = 31 * arrays + static_cast<std::size_t>(size);
  const auto original = original_.lock();
  std::size_t expected = arrays;
  if (!original || !original->may_be_repeated_.compare_exchange_strong(expected, 0)) {
    may_be_repeated_ = arrays;
    return false;
  }
  // MXNet calls backward for this operator instead.
  node_calls_->end(device_, original);
  return true;
}

void Operator::forward(std::vector<NDArray> arrays, OpReq request, bool is_train) {
  const auto at = positions_.forward();
  std::vector<std::size_t> outputs{at.out(), at[kMovingMean], at[kMovingVar]};
  if (!attributes_.momentum) outputs.push_back(at[kNumBatches]);
  // The running statistics stay as they are if the call fails.
  std::vector<std::size_t> results;
  if (request != kNull) results.push_back(at.out());
  std::make_shared<ForwardCall>(shared_from_this(), std::move(arrays), std::move(outputs),
                                std::move(results), request, is_train)
      ->push("SyncBatchNormForward");
}

}  // namespace gluon_syncbn::op

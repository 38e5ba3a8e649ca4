#include "operator/operator.h"

#include <cstdlib>
#include <utility>

#include "common/error.h"
#include "common/list_text.h"
#include "mxnet/dtype.h"
#include "mxnet/error_queue.h"

namespace gluon_syncbn::op {

using namespace mxnet;

namespace {

/// Recomputing a forward pass in backward would meet and move the averages a second time.
void require_no_mirroring() {
  const char* value = std::getenv("MXNET_BACKWARD_DO_MIRROR");
  if (value && std::atoi(value) != 0) {
    throw Error(std::string("environment variable MXNET_BACKWARD_DO_MIRROR=") + value +
                " lets MXNet run the layer a second time in backward, which would update the "
                "running statistics twice; unset it (on Gluon networks it has no effect)");
  }
}

/// MXNet checks all arrays but this one, which users give to backward().
void require_like_data(const NDArray& head_gradient, const NDArray& data) {
  const auto text = [](const NDArray& array) {
    return std::string(dtype_name(array.dtype())) + " of shape (" + number_list(array.shape()) +
           ")";
  };
  if (head_gradient.dtype() == data.dtype() && head_gradient.shape() == data.shape()) return;
  throw Error("the gradient of the output is " + text(head_gradient) + " but the output is " +
              text(data));
}

WriteMode write_of(OpReq request) { return request == kAdd ? WriteMode::kAdd : WriteMode::kAssign; }

}  // namespace

/// A call of the operator: one operation of the engine, from its push to its completion.
class Operator::EngineCall : public Call, public std::enable_shared_from_this<EngineCall> {
 public:
  /// `outputs` are positions in `arrays`.
  EngineCall(std::shared_ptr<Operator> op, std::vector<NDArray> arrays,
             std::vector<std::size_t> outputs)
      : op_(std::move(op)), arrays_(std::move(arrays)), outputs_(std::move(outputs)) {}

  /// Lets it run once the arrays are ready. Profilers show `name`. MXNet calls custom operators on
  /// threads of their own. They may as well put work on a GPU, which takes less time than to wake a
  /// worker; what computes on the CPU belongs on the worker of its context.
  void push(const char* name) {
    std::vector<NDArrayHandle> handles;
    for (const std::size_t position : outputs_) handles.push_back(arrays_[position].handle());
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
    // This engine has run the operation by now, and forgets its error.
    static const bool is_naive = is_engine("NaiveEngine");
    if (is_naive && !error_.empty()) throw Error(error_);
  }

  void complete(const std::string& error) override {
    // MXNet may free or reuse what the arrays hold as soon as it knows.
    if (error.empty()) {
      arrays_.clear();
      return completion_->succeed();
    }
    NDArray output = std::move(arrays_[outputs_.front()]);
    arrays_.clear();
    const std::string layer = op_->attributes_.layer();
    error_ = error.compare(0, layer.size(), layer) == 0 ? error : layer + ": " + error;
    ErrorQueue::instance().add(std::move(output), *completion_, error_);
  }

 protected:
  /// What it throws is the error of the call.
  virtual void run() = 0;

  const NDArray& array(std::size_t position) const { return arrays_[position]; }
  void* data(std::size_t position) const { return arrays_[position].data<void>(); }
  /// Null for 1.
  const void* gamma(std::size_t position) const {
    return op_->attributes_.fix_gamma ? nullptr : data(position);
  }
  Backend::Data data_of(const NDArray& array) const {
    const auto shape = array.shape();
    return {dtype_of(array.dtype()), Layout::of(shape, op_->attributes_.axis_of(shape.size()))};
  }

  const std::shared_ptr<Operator> op_;

 private:
  std::vector<NDArray> arrays_;
  const std::vector<std::size_t> outputs_;
  std::optional<Completion> completion_;
  std::string error_;
};

class Operator::ForwardCall : public EngineCall {
 public:
  ForwardCall(std::shared_ptr<Operator> op, std::vector<NDArray> arrays,
              std::vector<std::size_t> outputs, OpReq request, bool is_train)
      : EngineCall(std::move(op), std::move(arrays), std::move(outputs)),
        at_(op_->positions_.forward()),
        request_(request),
        is_train_(is_train) {}

  void meet() override {
    has_met_ = true;
    if (!op_->use_.uses) return;
    order_ = op_->use_.uses->order(op_->device_, data(at_[kMovingMean]));
    update_ = order_->reserve({op_->use_.uses, pass_, op_->use_.place});
  }

  Update update(const StatisticsPtr& batch, std::int64_t count) override {
    op_->saved_ = std::make_shared<const Saved>(Saved{batch, count, true, round_});
    Update update;
    update.running.momentum = op_->attributes_.momentum;
    update.running.mean = data(at_[kMovingMean]);
    update.running.variance = data(at_[kMovingVar]);
    if (!op_->attributes_.momentum) update.running.num_batches = data(at_[kNumBatches]);
    // A batch without elements moves nothing.
    const StatisticsPtr moves = count > 0 ? batch : nullptr;
    if (const auto entry = std::exchange(update_, nullptr)) {
      order_->apply(entry, moves, &update);
    } else if (moves) {
      update.batches = {moves};
    }
    return update;
  }

  void post(std::function<void()> task) override {
    mxnet::post(op_->device_, "SyncBatchNormNormalize", std::move(task));
  }

  void complete(const std::string& error) override {
    if (has_begun_ && !error.empty()) training_failed(error);
    EngineCall::complete(error);
  }

 private:
  void run() override {
    const Attributes& attributes = op_->attributes_;
    if (!is_train_ || attributes.use_global_stats) return infer();
    require_no_mirroring();
    if (attributes.sync_group_size && !attributes.group_of(op_->device_.index)) {
      throw Error("called on " + op_->device_.name() + ", which is in no group: sync_group_size=" +
                  std::to_string(attributes.group_size()) + " groups the devices " +
                  attributes.device_list());
    }
    op_->forward_error_.clear();
    if (op_->group_) return train_with_others();
    pass_ = op_->runs_++;
    finish_alone(begin());
  }

  void train_with_others() {
    const Device& device = op_->device_;
    op_->saved_ = nullptr;
    const NDArray& x = array(at_[kData]);
    const Signature signature{data_of(x).layout.channels, dtype_name(x.dtype()),
                              op_->attributes_.eps, op_->attributes_.momentum, device.type};
    round_ = op_->group_->join(device, op_->runs_ == 0 ? op_->ticket_ : Membership::kJustMade);
    pass_ = round_->number();
    std::shared_ptr<DevicePass> pass;
    try {
      pass = begin();
      op_->pending_->begin(device, op_, op_->runs_++);
      round_->agree(device, signature);
      round_->forward().sum(pass.get());
    } catch (const std::exception& error) {
      round_->fail(device, error.what());
      if (!pass) throw;
      return pass->fail(error.what());
    }
    round_->forward().arrive(device, pass);
  }

  void infer() {
    if (op_->group_ && !op_->attributes_.use_global_stats) {
      op_->group_->saw_inference(op_->device_);
    }
    const auto statistics =
        op_->backend_->running_statistics(data_of(array(at_[kData])), data(at_[kMovingMean]),
                                          data(at_[kMovingVar]), op_->attributes_.eps);
    op_->saved_ = std::make_shared<const Saved>(Saved{statistics, 0, false, nullptr});
    op_->backend_->inference(work(), statistics, shared_from_this());
  }

  std::shared_ptr<DevicePass> begin() {
    auto pass = op_->backend_->forward(work(), shared_from_this());
    has_begun_ = true;
    return pass;
  }

  Backend::Forward work() const {
    const Attributes& attributes = op_->attributes_;
    Backend::Forward work;
    work.data = data_of(array(at_[kData]));
    work.x = data(at_[kData]);
    work.eps = attributes.eps;
    work.gamma = gamma(at_[kGamma]);
    work.beta = data(at_[kBeta]);
    work.activation = attributes.activation;
    if (attributes.shortcut) work.shortcut = data(at_[kShortcut]);
    work.write = write_of(request_);
    if (attributes.inplace && work.write == WriteMode::kAdd) {
      throw Error("inplace=True cannot add to what its output holds: backward reads the output");
    }
    work.y = request_ == kNull ? nullptr : data(at_.out());
    return work;
  }

  void training_failed(const std::string& error) {
    op_->forward_error_ = error;
    if (const auto entry = std::exchange(update_, nullptr)) {
      order_->cancel(entry);
    } else if (op_->use_.uses && !order_) {
      op_->use_.uses->came(pass_);
    }
    if (op_->pending_) op_->pending_->end(op_->device_, op_);
    // Its peers would wait for it in backward.
    if (round_ && has_met_) round_->fail(op_->device_, error);
  }

  const Positions::Forward at_;
  const OpReq request_;
  const bool is_train_;
  bool has_begun_ = false;  // in training
  bool has_met_ = false;
  std::shared_ptr<Round> round_;  // empty without peers
  std::uint64_t pass_ = 0;        // number of the training forward
  std::shared_ptr<UpdateOrder> order_;
  std::shared_ptr<UpdateOrder::Entry> update_;  // until it is applied
};

class Operator::BackwardCall : public EngineCall {
 public:
  BackwardCall(std::shared_ptr<Operator> op, std::vector<NDArray> arrays,
               std::vector<std::size_t> outputs, std::vector<OpReq> requests)
      : EngineCall(std::move(op), std::move(arrays), std::move(outputs)),
        at_(op_->positions_.backward()),
        reads_(op_->attributes_.backward_reads()),
        requests_(std::move(requests)) {}

  void post(std::function<void()> task) override {
    mxnet::post(op_->device_, "SyncBatchNormInputGradient", std::move(task));
  }

 private:
  void run() override {
    if (!op_->saved_) {
      throw Error(op_->forward_error_.empty()
                      ? "backward without a forward pass that succeeded"
                      : "backward of a forward pass that failed: " + op_->forward_error_);
    }
    if (op_->pending_) op_->pending_->end(op_->device_, op_);
    saved_ = op_->saved_;
    if (!saved_->round) return finish_alone(begin());
    const auto reduction = saved_->round->next_backward(op_->device_);
    std::shared_ptr<DevicePass> pass;
    try {
      pass = begin();
      reduction->sum(pass.get());
    } catch (const std::exception& error) {
      reduction->fail("failed on " + op_->device_.name() + ": " + error.what());
      if (!pass) throw;
      return pass->fail(error.what());
    }
    reduction->arrive(op_->device_, pass);
  }

  std::shared_ptr<DevicePass> begin() {
    require_like_data(array(at_.out_gradient()), like_data());
    return op_->backend_->backward(work(), shared_from_this());
  }

  /// An array of the shape and dtype of the input, which may be gone.
  const NDArray& like_data() const { return array(reads_.data ? at_[kData] : at_.out()); }

  Backend::Backward work() const {
    Backend::Backward work;
    work.data = data_of(like_data());
    work.dy = data(at_.out_gradient());
    work.statistics = saved_->statistics;
    work.of_batch = saved_->of_batch;
    work.count = saved_->count;
    work.gamma = gamma(at_[kGamma]);
    work.activation = op_->attributes_.activation;
    work.inplace = op_->attributes_.inplace;
    if (reads_.data) work.x = data(at_[kData]);
    if (reads_.beta) work.beta = data(at_[kBeta]);
    if (reads_.output) work.y = data(at_.out());
    work.gradients = gradients();
    return work;
  }

  Backend::Gradients gradients() const {
    const auto write = [&](Argument argument) { return write_of(requests_[argument]); };
    const auto wanted = [&](Argument argument) -> void* {
      return requests_[argument] == kNull ? nullptr : data(at_.gradient(argument));
    };
    // The trainer adds up the gradients of parameters over devices, so each gives its own share.
    Backend::Gradients gradients;
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
  std::shared_ptr<const Saved> saved_;
};

void PendingForwards::begin(const Device& device, const std::shared_ptr<void>& op,
                            std::uint64_t runs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Pending& pending = pending_[device];
  const auto other = pending.op.lock();
  if (other == op) {
    pending.is_followed = false;
    return;
  }
  if (other && pending.is_followed && (runs > 0 || pending.runs > 0)) {
    throw Error("a network hybridized with static_shape=True was called twice on " + device.name() +
                " before backward; MXNet keeps no order between these calls. Hybridize it without "
                "static_shape");
  }
  pending = {op, runs, true};
}

void PendingForwards::end(const Device& device, const std::shared_ptr<void>& op) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pending_.find(device);
  if (found != pending_.end() && found->second.op.lock() == op) pending_.erase(found);
}

Operator::Operator(Attributes attributes, Device device, std::shared_ptr<Backend> backend,
                   std::shared_ptr<SyncGroup> group, std::shared_ptr<PendingForwards> pending,
                   GraphUse use)
    : attributes_(std::move(attributes)),
      positions_(attributes_),
      device_(std::move(device)),
      backend_(std::move(backend)),
      group_(std::move(group)),
      pending_(std::move(pending)),
      use_(std::move(use)),
      ticket_(group_ ? group_->announce(device_) : 0) {}

void Operator::forward(std::vector<NDArray> arrays, OpReq request, bool is_train) {
  const auto at = positions_.forward();
  std::vector<std::size_t> outputs{at.out(), at[kMovingMean], at[kMovingVar]};
  if (!attributes_.momentum) outputs.push_back(at[kNumBatches]);
  std::make_shared<ForwardCall>(shared_from_this(), std::move(arrays), std::move(outputs), request,
                                is_train)
      ->push("SyncBatchNormForward");
}

void Operator::backward(std::vector<NDArray> arrays, const int* requests) {
  std::vector<OpReq> of_arguments;
  std::vector<std::size_t> outputs;
  for (std::size_t i = 0; i < positions_.arguments(); ++i) {
    of_arguments.push_back(static_cast<OpReq>(requests[i]));
    outputs.push_back(positions_.backward().gradient(static_cast<Argument>(i)));
  }
  std::make_shared<BackwardCall>(shared_from_this(), std::move(arrays), std::move(outputs),
                                 std::move(of_arguments))
      ->push("SyncBatchNormBackward");
}

}  // namespace gluon_syncbn::op

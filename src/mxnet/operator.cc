#include "mxnet/operator.h"

#include <cstdlib>
#include <utility>

#include "common/error.h"
#include "common/list_text.h"
#include "mxnet/dtype.h"
#include "mxnet/error_queue.h"

namespace gluon_syncbn::mxnet {
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

// What profilers show.
constexpr const char* kNormalize = "SyncBatchNormNormalize";
constexpr const char* kInputGradient = "SyncBatchNormInputGradient";

std::function<void(std::function<void()>)> posting_to(const Device& device, const char* name) {
  return [device, name](std::function<void()> task) { post(device, name, std::move(task)); };
}

/// For a pass without peers.
void run_alone(const std::shared_ptr<DevicePass>& pass) {
  try {
    pass->begin([] { return true; });
  } catch (const std::exception& error) {
    return pass->fail(error.what());
  }
  finish_all(pass.get(), {pass}, {});
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

struct Operator::Call {
  std::vector<NDArray> arrays;
  std::vector<std::size_t> outputs;  // positions in `arrays`
  std::string error = "";
};

struct Operator::ForwardCall : Call {
  OpReq request;
  bool is_train;
  std::shared_ptr<Round> round = nullptr;  // empty without peers
  std::uint64_t pass = 0;                  // number of the training forward
  bool met = false;
  std::shared_ptr<UpdateOrder> order = nullptr;
  std::shared_ptr<UpdateOrder::Entry> update = nullptr;  // until it is applied
};

struct Operator::BackwardCall : Call {
  std::vector<OpReq> requests;  // by argument
  std::shared_ptr<const Forward> forward;
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
  push_call(std::make_shared<ForwardCall>(
                ForwardCall{{std::move(arrays), std::move(outputs)}, request, is_train}),
            "SyncBatchNormForward", &Operator::run_forward);
}

void Operator::backward(std::vector<NDArray> arrays, const int* requests) {
  std::vector<OpReq> of_arguments;
  std::vector<std::size_t> outputs;
  for (std::size_t i = 0; i < positions_.arguments(); ++i) {
    of_arguments.push_back(static_cast<OpReq>(requests[i]));
    outputs.push_back(positions_.backward().gradient(static_cast<Argument>(i)));
  }
  push_call(std::make_shared<BackwardCall>(BackwardCall{
                {std::move(arrays), std::move(outputs)}, std::move(of_arguments), nullptr}),
            "SyncBatchNormBackward", &Operator::run_backward);
}

template <class OneCall>
void Operator::push_call(std::shared_ptr<OneCall> call, const char* name,
                         void (Operator::*run)(const std::shared_ptr<OneCall>&,
                                               const Completion&)) {
  std::vector<NDArrayHandle> handles;
  for (const std::size_t position : call->outputs)
    handles.push_back(call->arrays[position].handle());
  // This engine runs the operation at once, and forgets its error.
  static const bool is_naive = is_engine("NaiveEngine");
  const std::shared_ptr<const Call> forgotten = is_naive ? call : nullptr;
  push(device_, {}, handles, name, kNormal,
       [self = shared_from_this(), call = std::move(call), run](const Completion& completion) {
         try {
           ((*self).*run)(call, completion);
         } catch (const std::exception& error) {
           self->complete(call, completion, error.what());
         }
       });
  if (forgotten && !forgotten->error.empty()) throw Error(forgotten->error);
}

void Operator::complete(const std::shared_ptr<Call>& call, const Completion& completion,
                        const std::string& error) const {
  // The host may free or reuse what the arrays hold as soon as it knows.
  if (error.empty()) {
    call->arrays.clear();
    return completion.succeed();
  }
  NDArray output = std::move(call->arrays[call->outputs.front()]);
  call->arrays.clear();
  const std::string layer = attributes_.layer();
  call->error = error.compare(0, layer.size(), layer) == 0 ? error : layer + ": " + error;
  ErrorQueue::instance().add(std::move(output), completion, call->error);
}

const void* Operator::gamma(const NDArray& array) const {
  return attributes_.fix_gamma ? nullptr : array.data<void>();
}

Backend::Data Operator::data_of(const NDArray& array) const {
  const auto shape = array.shape();
  return {dtype_of(array.dtype()), Layout::of(shape, attributes_.axis_of(shape.size()))};
}

const NDArray& Operator::like_data(const BackwardCall& call) const {
  const auto at = positions_.backward();
  return call.arrays[attributes_.backward_reads().data ? at[kData] : at.out()];
}

void Operator::run_forward(const std::shared_ptr<ForwardCall>& call, const Completion& completion) {
  if (!call->is_train || attributes_.use_global_stats) return run_inference(call, completion);
  require_no_mirroring();
  if (attributes_.sync_group_size && !attributes_.group_of(device_.index)) {
    throw Error("called on " + device_.name() + ", which is in no group: sync_group_size=" +
                std::to_string(attributes_.group_size()) + " groups the devices " +
                attributes_.device_list());
  }
  forward_error_.clear();
  if (!group_) {
    call->pass = runs_++;
    return run_alone(pass_of(call, completion));
  }

  forward_ = nullptr;
  const NDArray& x = call->arrays[positions_.forward()[kData]];
  const Signature signature{data_of(x).layout.channels, dtype_name(x.dtype()), attributes_.eps,
                            attributes_.momentum, device_.type};
  const auto round = group_->join(device_, runs_ == 0 ? ticket_ : Membership::kJustMade);
  call->round = round;
  call->pass = round->number();
  std::shared_ptr<DevicePass> pass;
  try {
    pass = pass_of(call, completion);
    pending_->begin(device_, shared_from_this(), runs_++);
    round->agree(device_, signature);
    round->forward().begin(pass.get());
  } catch (const std::exception& error) {
    round->fail(device_, error.what());
    if (!pass) throw;
    return pass->fail(error.what());
  }
  round->forward().arrive(device_, pass);
}

void Operator::run_inference(const std::shared_ptr<ForwardCall>& call,
                             const Completion& completion) {
  const auto at = positions_.forward();
  if (group_ && !attributes_.use_global_stats) group_->saw_inference(device_);
  const auto statistics = backend_->running_statistics(
      data_of(call->arrays[at[kData]]), call->arrays[at[kMovingMean]].data<void>(),
      call->arrays[at[kMovingVar]].data<void>(), attributes_.eps);
  forward_ = std::make_shared<const Forward>(Forward{statistics, 0, false, nullptr});
  backend_->inference(normalization_of(call, completion), statistics);
}

void Operator::run_backward(const std::shared_ptr<BackwardCall>& call,
                            const Completion& completion) {
  const auto at = positions_.backward();
  if (!forward_) {
    throw Error(forward_error_.empty()
                    ? "backward without a forward pass that succeeded"
                    : "backward of a forward pass that failed: " + forward_error_);
  }
  if (pending_) pending_->end(device_, shared_from_this());
  call->forward = forward_;
  const auto require_gradient = [&] {
    require_like_data(call->arrays[at.out_gradient()], like_data(*call));
  };
  if (!call->forward->round) {
    require_gradient();
    return run_alone(pass_of(call, completion));
  }
  const auto reduction = call->forward->round->next_backward(device_);
  std::shared_ptr<DevicePass> pass;
  try {
    require_gradient();
    pass = pass_of(call, completion);
    reduction->begin(pass.get());
  } catch (const std::exception& error) {
    reduction->fail("failed on " + device_.name() + ": " + error.what());
    if (!pass) throw;
    return pass->fail(error.what());
  }
  reduction->arrive(device_, pass);
}

Backend::Normalization Operator::normalization_of(const std::shared_ptr<ForwardCall>& call,
                                                  const Completion& completion) {
  const auto at = positions_.forward();
  const NDArray& x = call->arrays[at[kData]];
  Backend::Normalization pass;
  pass.data = data_of(x);
  pass.x = x.data<void>();
  pass.eps = attributes_.eps;
  pass.gamma = gamma(call->arrays[at[kGamma]]);
  pass.beta = call->arrays[at[kBeta]].data<void>();
  pass.activation = attributes_.activation;
  if (attributes_.shortcut) pass.shortcut = call->arrays[at[kShortcut]].data<void>();
  pass.write = write_of(call->request);
  if (attributes_.inplace && pass.write == WriteMode::kAdd) {
    throw Error("inplace=True cannot add to what its output holds: backward reads the output");
  }
  pass.y = call->request == kNull ? nullptr : call->arrays[at.out()].data<void>();
  pass.done = [self = shared_from_this(), call, completion](const std::string& error) {
    self->complete(call, completion, error);
  };
  return pass;
}

std::shared_ptr<DevicePass> Operator::pass_of(const std::shared_ptr<ForwardCall>& call,
                                              const Completion& completion) {
  Backend::Forward pass;
  static_cast<Backend::Normalization&>(pass) = normalization_of(call, completion);
  pass.done = [self = shared_from_this(), call, completion](const std::string& error) {
    if (!error.empty()) self->forward_failed(call.get(), error);
    self->complete(call, completion, error);
  };
  pass.met = [self = shared_from_this(), call] {
    call->met = call->round != nullptr;
    self->reserve_update(call.get());
  };
  pass.merged = [self = shared_from_this(), call](const Backend::StatisticsPtr& batch,
                                                  std::int64_t count) {
    self->forward_ = std::make_shared<const Forward>(Forward{batch, count, true, call->round});
    return self->update_of(call.get(), count > 0 ? batch : nullptr);
  };
  pass.post = posting_to(device_, kNormalize);
  return backend_->forward(std::move(pass));
}

std::shared_ptr<DevicePass> Operator::pass_of(const std::shared_ptr<BackwardCall>& call,
                                              const Completion& completion) {
  const auto at = positions_.backward();
  const Forward& forward = *call->forward;
  Backend::Backward pass;
  pass.data = data_of(like_data(*call));
  pass.dy = call->arrays[at.out_gradient()].data<void>();
  pass.statistics = forward.statistics;
  pass.of_batch = forward.of_batch;
  pass.count = forward.count;
  pass.gamma = gamma(call->arrays[at[kGamma]]);
  pass.activation = attributes_.activation;
  const BackwardReads reads = attributes_.backward_reads();
  pass.inplace = attributes_.inplace;
  if (reads.data) pass.x = call->arrays[at[kData]].data<void>();
  if (reads.beta) pass.beta = call->arrays[at[kBeta]].data<void>();
  if (reads.output) pass.y = call->arrays[at.out()].data<void>();
  pass.gradients = gradients_of(*call);
  pass.post = posting_to(device_, kInputGradient);
  pass.done = [self = shared_from_this(), call, completion](const std::string& error) {
    self->complete(call, completion, error);
  };
  return backend_->backward(std::move(pass));
}

void Operator::reserve_update(ForwardCall* call) const {
  if (!use_.uses) return;
  const NDArray& mean = call->arrays[positions_.forward()[kMovingMean]];
  call->order = use_.uses->order(device_, mean.data<void>());
  call->update = call->order->reserve({use_.uses, call->pass, use_.place});
}

Backend::Update Operator::update_of(ForwardCall* call, Backend::StatisticsPtr batch) const {
  const auto at = positions_.forward();
  Backend::Update update;
  update.running.momentum = attributes_.momentum;
  update.running.mean = call->arrays[at[kMovingMean]].data<void>();
  update.running.variance = call->arrays[at[kMovingVar]].data<void>();
  if (!attributes_.momentum)
    update.running.num_batches = call->arrays[at[kNumBatches]].data<void>();
  if (const auto entry = std::exchange(call->update, nullptr)) {
    call->order->apply(entry, std::move(batch), &update);
  } else if (batch) {
    update.batches = {std::move(batch)};
  }
  return update;
}

void Operator::forward_failed(ForwardCall* call, const std::string& error) {
  forward_error_ = error;
  if (const auto entry = std::exchange(call->update, nullptr)) {
    call->order->cancel(entry);
  } else if (use_.uses && !call->order) {
    use_.uses->came(call->pass);
  }
  if (pending_) pending_->end(device_, shared_from_this());
  // Its peers would wait for it in backward.
  if (call->met) call->round->fail(device_, error);
}

Backend::Gradients Operator::gradients_of(const BackwardCall& call) const {
  const auto write = [&](Argument argument) { return write_of(call.requests[argument]); };
  const auto wanted = [&](Argument argument) -> void* {
    if (call.requests[argument] == kNull) return nullptr;
    return call.arrays[positions_.backward().gradient(argument)].data<void>();
  };
  // The trainer adds up the gradients of parameters over devices, so each gives its own share.
  Backend::Gradients gradients;
  gradients.fix_gamma = attributes_.fix_gamma;
  gradients.write_gamma = write(kGamma);
  gradients.gamma = wanted(kGamma);
  gradients.write_beta = write(kBeta);
  gradients.beta = wanted(kBeta);
  gradients.write_data = write(kData);
  gradients.data = wanted(kData);
  if (attributes_.shortcut) {
    gradients.write_shortcut = write(kShortcut);
    gradients.shortcut = wanted(kShortcut);
  }
  return gradients;
}

}  // namespace gluon_syncbn::mxnet

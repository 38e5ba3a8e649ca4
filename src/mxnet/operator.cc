#include "mxnet/operator.h"

#include <cstdlib>
#include <utility>

#include "common/error.h"
#include "common/list_text.h"
#include "mxnet/dtype.h"

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

Share::Post posting_to(const Device& device, const char* name) {
  return [device, name](std::function<void()> task) { post(device, name, std::move(task)); };
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

Write write_of(Request request) { return request == kAdd ? Write::kAdd : Write::kAssign; }

}  // namespace

struct Operator::ForwardCall {
  std::vector<NDArray> arrays;
  Request request;
  bool is_train;
};

struct Operator::BackwardCall {
  std::vector<NDArray> arrays;
  std::vector<Request> requests;
  std::shared_ptr<const Forward> forward;
  GradientSums own;

  Request request(std::size_t position) const {
    return requests[position - backward_at::kDataGrad];
  }
};

void PendingForwards::begin(const Device& device, const std::shared_ptr<void>& op,
                            std::uint64_t runs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Pending& pending = pending_[device];
  const auto other = pending.op.lock();
  if (other && other != op && (runs > 0 || pending.runs > 0)) {
    throw Error("a network hybridized with static_shape=True was called twice on " + device.name() +
                " before backward; MXNet keeps no order between these calls. Hybridize it without "
                "static_shape");
  }
  pending = {op, runs};
}

void PendingForwards::end(const Device& device, const std::shared_ptr<void>& op) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pending_.find(device);
  if (found != pending_.end() && found->second.op.lock() == op) pending_.erase(found);
}

Operator::Operator(Attributes attributes, Device device, std::shared_ptr<Backend> backend,
                   std::shared_ptr<Meeting> meeting, std::shared_ptr<PendingForwards> pending,
                   UpdatePlace update_place)
    : attributes_(std::move(attributes)),
      device_(std::move(device)),
      backend_(std::move(backend)),
      meeting_(std::move(meeting)),
      pending_(std::move(pending)),
      update_place_(std::move(update_place)),
      ticket_(meeting_ ? meeting_->announce(device_) : 0) {}

void Operator::forward(std::vector<NDArray> arrays, Request request, bool is_train) {
  using namespace forward_at;
  std::vector<std::size_t> written{kOut, kMovingMean, kMovingVar};
  if (!attributes_.momentum) written.push_back(kNumBatches);
  push_call(std::make_shared<ForwardCall>(ForwardCall{std::move(arrays), request, is_train}),
            written, "SyncBatchNormForward", &Operator::run_forward);
}

void Operator::backward(std::vector<NDArray> arrays, std::vector<Request> requests) {
  using namespace backward_at;
  push_call(std::make_shared<BackwardCall>(
                BackwardCall{std::move(arrays), std::move(requests), nullptr, {}}),
            {kDataGrad, kGammaGrad, kBetaGrad}, "SyncBatchNormBackward", &Operator::run_backward);
}

template <class Call>
void Operator::push_call(std::shared_ptr<Call> call, const std::vector<std::size_t>& outputs,
                         const char* name,
                         void (Operator::*run)(const std::shared_ptr<Call>&, const Completion&)) {
  std::vector<NDArrayHandle> handles;
  for (const std::size_t position : outputs) handles.push_back(call->arrays[position].handle());
  push(device_, {}, handles, name, kNormal,
       [self = shared_from_this(), call = std::move(call), run](const Completion& completion) {
         self->guarded(call, completion, [&] { ((*self).*run)(call, completion); });
       });
}

std::string Operator::named(const std::string& error) const {
  const std::string layer = attributes_.layer();
  return error.compare(0, layer.size(), layer) == 0 ? error : layer + ": " + error;
}

template <class Kept>
void Operator::complete(const Completion& completion, Kept kept, const std::string& error) const {
  backend_->finish([self = shared_from_this(), completion, kept = std::move(kept),
                    error](const std::string& found) mutable {
    // What was computed from a failed operation is its consequence.
    const std::string& first = error.empty() ? found : error;
    // The host may free or reuse the arrays as soon as it knows.
    kept = Kept();
    if (first.empty()) {
      completion.succeed();
    } else {
      completion.fail(self->named(first));
    }
  });
}

template <class Kept, class Task>
bool Operator::guarded(const Kept& kept, const Completion& completion, const Task& task) const {
  try {
    task();
    return true;
  } catch (const std::exception& error) {
    complete(completion, kept, error.what());
    return false;
  }
}

template <class Part, class Compute>
Part Operator::part_of(const std::shared_ptr<Share>& share, Exchange<Part>* exchange,
                       const Compute& compute) {
  if (!share) return compute();
  exchange->announce();
  share->begin([exchange] { return exchange->all_are_coming(); });
  Part part;
  part.shares = {share};
  return part;
}

template <class Part, class Call, class FinishTask, class MissedTask>
void Operator::meet(Exchange<Part>& exchange, Part part, std::shared_ptr<Call> call,
                    const Completion& completion, const char* name, FinishTask finish,
                    MissedTask missed) {
  auto go_on = [self = shared_from_this(), call, completion,
                finish](const std::shared_ptr<const Part>& merged) {
    // The parts of other devices are read until this one is done, also where it fails midway.
    const auto kept = std::make_pair(call, merged);
    if (self->guarded(kept, completion, [&] { finish(*merged); })) self->complete(completion, kept);
  };
  const auto share = part.shares.empty() ? nullptr : part.shares.front();
  exchange.arrive(
      device_, std::move(part),
      [self = shared_from_this(), call, completion, go_on, missed, name, share](
          const Outcome<Part>& outcome, CalledOn called_on) {
        if (!outcome) {
          // An error of its own is a consequence, and must not keep others from being told.
          try {
            missed();
          } catch (const std::exception&) {
          }
          self->complete(completion, call, outcome.error);
        } else if (share) {
          if (called_on == CalledOn::kOwnThread) share->finish(outcome.merged->shares);
        } else if (called_on == CalledOn::kOwnThread || !self->backend_->keeps_caller_busy()) {
          go_on(outcome.merged);
        } else {
          self->guarded(call, completion, [&] {
            post(self->device_, name, [go_on, merged = outcome.merged] { go_on(merged); });
          });
        }
      });
}

const void* Operator::gamma(const NDArray& array) const {
  return attributes_.fix_gamma ? nullptr : array.data<void>();
}

Backend::Data Operator::data_of(const NDArray& array) const {
  const auto shape = array.shape();
  return {element_of(array.dtype()), Layout::of(shape, attributes_.axis_of(shape.size()))};
}

void Operator::run_forward(const std::shared_ptr<ForwardCall>& call, const Completion& completion) {
  using namespace forward_at;
  const NDArray& x = call->arrays[kData];
  const Backend::Data data = data_of(x);

  if (!call->is_train || attributes_.use_global_stats) {
    if (meeting_ && !attributes_.use_global_stats) meeting_->saw_inference(device_);
    Forward inference;
    inference.statistics =
        backend_->running_statistics(data, call->arrays[kMovingMean].data<void>(),
                                     call->arrays[kMovingVar].data<void>(), attributes_.eps);
    forward_ = std::make_shared<const Forward>(std::move(inference));
    normalize(*call, *forward_->statistics, {});
    complete(completion, call);
    return;
  }
  require_no_mirroring();
  if (attributes_.sync_group_size && !attributes_.group_of(device_.index)) {
    throw Error("called on " + device_.name() + ", which is in no group: sync_group_size=" +
                std::to_string(attributes_.group_size()) + " groups the devices " +
                attributes_.device_list());
  }
  if (!meeting_) {
    if (const auto share = share_of(call, completion, nullptr)) {
      share->finish({share});
      return;
    }
    finish_forward(*call, backend_->moments(data, x.data<void>()), nullptr);
    complete(completion, call);
    return;
  }

  forward_ = nullptr;
  const auto round = meeting_->join(device_, runs_ == 0 ? ticket_ : Roll::kJustMade);
  const auto give_up = [this, call, data] {
    pending_->end(device_, shared_from_this());
    // Updates that have waited for this one.
    const Backend::Update update = update_of(*call, nullptr);
    for (const auto& batch : update.batches) backend_->move_averages(data, *batch, update.running);
  };
  Moments own;
  try {
    pending_->begin(device_, shared_from_this(), runs_++);
    round->agree(device_, {data.layout.channels, dtype_name(x.dtype()), attributes_.eps,
                           attributes_.momentum, device_.type});
    auto& exchange = round->forward();
    own = part_of(exchange.crosses() ? nullptr : share_of(call, completion, round), &exchange,
                  [&] { return backend_->moments(data, x.data<void>()); });
  } catch (const std::exception& error) {
    round->fail(device_, error.what());
    give_up();
    throw;
  }
  meet(
      round->forward(), std::move(own), call, completion, kNormalize,
      [this, call, round](const Moments& merged) {
        try {
          finish_forward(*call, merged, round);
        } catch (const std::exception& error) {
          round->fail(device_, error.what());  // for its peers in backward
          throw;
        }
      },
      give_up);
}

void Operator::finish_forward(const ForwardCall& call, const Moments& moments,
                              std::shared_ptr<Round> round) {
  const Backend::Data data = data_of(call.arrays[forward_at::kData]);
  auto statistics = backend_->batch_statistics(data, moments, attributes_.eps);
  forward_ =
      std::make_shared<const Forward>(Forward{statistics, moments.count, true, std::move(round)});
  normalize(call, *statistics, update_of(call, moments.count > 0 ? statistics : nullptr));
}

std::shared_ptr<Share> Operator::share_of(const std::shared_ptr<ForwardCall>& call,
                                          const Completion& completion,
                                          const std::shared_ptr<Round>& round) {
  using namespace forward_at;
  const NDArray& x = call->arrays[kData];
  Backend::Forward pass;
  pass.data = data_of(x);
  pass.x = x.data<void>();
  pass.eps = attributes_.eps;
  pass.gamma = gamma(call->arrays[kGamma]);
  pass.beta = call->arrays[kBeta].data<void>();
  pass.write = write_of(call->request);
  pass.y = call->request == kNull ? nullptr : call->arrays[kOut].data<void>();
  pass.met = [self = shared_from_this(), call, round](const Backend::StatisticsPtr& batch,
                                                      std::int64_t count) {
    self->forward_ = std::make_shared<const Forward>(Forward{batch, count, true, round});
    return self->update_of(*call, count > 0 ? batch : nullptr);
  };
  pass.post = posting_to(device_, kNormalize);
  pass.done = [self = shared_from_this(), call, completion, round](const std::string& error) {
    if (!error.empty() && round) round->fail(self->device_, error);  // for its peers in backward
    self->complete(completion, call, error);
  };
  return backend_->share(std::move(pass));
}

Backend::Update Operator::update_of(const ForwardCall& call, Backend::StatisticsPtr batch) const {
  using namespace forward_at;
  Backend::Update update;
  update.running.momentum = attributes_.momentum;
  update.running.mean = call.arrays[kMovingMean].data<void>();
  update.running.variance = call.arrays[kMovingVar].data<void>();
  if (!attributes_.momentum) update.running.num_batches = call.arrays[kNumBatches].data<void>();
  if (update_place_.order) {
    update.turn = update_place_.order->turn();
    update.batches = update_place_.order->update(update_place_.use, std::move(batch));
  } else if (batch) {
    update.batches = {std::move(batch)};
  }
  return update;
}

void Operator::normalize(const ForwardCall& call, const Statistics& statistics,
                         const Backend::Update& update) const {
  using namespace forward_at;
  const NDArray& x = call.arrays[kData];
  void* y = call.request == kNull ? nullptr : call.arrays[kOut].data<void>();
  backend_->normalize(data_of(x), x.data<void>(), statistics, gamma(call.arrays[kGamma]),
                      call.arrays[kBeta].data<void>(), write_of(call.request), y, update);
}

void Operator::run_backward(const std::shared_ptr<BackwardCall>& call,
                            const Completion& completion) {
  using namespace backward_at;
  if (!forward_) throw Error("backward without a forward pass that succeeded");
  if (pending_) pending_->end(device_, shared_from_this());
  call->forward = forward_;
  const NDArray& x = call->arrays[kData];
  const auto require_gradient = [&] { require_like_data(call->arrays[kOutGrad], x); };
  const auto sum = [&] {
    call->own = backend_->gradient_sums(data_of(x), call->arrays[kOutGrad].data<void>(),
                                        x.data<void>(), *call->forward->statistics);
    return call->own;
  };
  if (!call->forward->round) {
    require_gradient();
    const auto share = forward_->of_batch ? share_of(call, completion) : nullptr;
    if (share) {
      share->finish({share});
      return;
    }
    sum();
    finish_backward(*call, call->own);
    complete(completion, call);
    return;
  }

  const auto exchange = call->forward->round->next_backward(device_);
  GradientSums part;
  try {
    require_gradient();
    part = part_of(exchange->crosses() ? nullptr : share_of(call, completion), exchange.get(), sum);
  } catch (const std::exception& error) {
    exchange->fail("failed on " + device_.name() + ": " + error.what());
    throw;
  }
  meet(
      *exchange, std::move(part), call, completion, kInputGradient,
      [this, call](const GradientSums& merged) { finish_backward(*call, merged); }, [] {});
}

std::shared_ptr<Share> Operator::share_of(const std::shared_ptr<BackwardCall>& call,
                                          const Completion& completion) {
  using namespace backward_at;
  Backend::Backward pass;
  pass.data = data_of(call->arrays[kData]);
  pass.dy = call->arrays[kOutGrad].data<void>();
  pass.x = call->arrays[kData].data<void>();
  pass.statistics = call->forward->statistics;
  pass.count = call->forward->count;
  pass.gamma = gamma(call->arrays[kGamma]);
  pass.gradients = gradients_of(*call);
  pass.post = posting_to(device_, kInputGradient);
  pass.done = [self = shared_from_this(), call, completion](const std::string& error) {
    self->complete(completion, call, error);
  };
  return backend_->share(std::move(pass));
}

void Operator::finish_backward(const BackwardCall& call, const GradientSums& all_devices) const {
  using namespace backward_at;
  const Forward& forward = *call.forward;
  backend_->gradients(data_of(call.arrays[kData]), call.arrays[kOutGrad].data<void>(),
                      call.arrays[kData].data<void>(), *forward.statistics, call.own,
                      forward.of_batch ? &all_devices : nullptr, forward.count,
                      gamma(call.arrays[kGamma]), gradients_of(call));
}

Backend::Gradients Operator::gradients_of(const BackwardCall& call) const {
  using namespace backward_at;
  const auto wanted = [&](std::size_t position) -> void* {
    return call.request(position) == kNull ? nullptr : call.arrays[position].data<void>();
  };
  // The trainer adds up the gradients of parameters over devices, so each gives its own share.
  return {attributes_.fix_gamma, write_of(call.request(kGammaGrad)),
          wanted(kGammaGrad),    write_of(call.request(kBetaGrad)),
          wanted(kBetaGrad),     write_of(call.request(kDataGrad)),
          wanted(kDataGrad)};
}

}  // namespace gluon_syncbn::mxnet

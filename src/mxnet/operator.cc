#include "mxnet/operator.h"

#include <cmath>
#include <cstdlib>
#include <utility>

#include "core/error.h"

namespace gluon_syncbn::mxnet {
namespace {

/// Completes with an error where `task` throws. True where it did not.
template <class Task>
bool guarded(const std::string& layer, const Completion& completion, const Task& task) {
  try {
    task();
    return true;
  } catch (const std::exception& error) {
    const std::string message = error.what();
    const bool named = message.compare(0, layer.size(), layer) == 0;
    completion.fail(named ? message : layer + ": " + message);
    return false;
  }
}

/// Recomputing a forward pass in backward would meet and move the averages a second time.
void require_no_mirroring() {
  const char* value = std::getenv("MXNET_BACKWARD_DO_MIRROR");
  if (value && std::atoi(value) != 0) {
    throw Error(std::string("environment variable MXNET_BACKWARD_DO_MIRROR=") + value +
                " lets MXNet run the layer a second time in backward, which would update the "
                "running statistics twice; unset it (on Gluon networks it has no effect)");
  }
}

Write write_of(Request request) { return request == kAdd ? Write::kAdd : Write::kAssign; }

template <class P>
std::vector<double> to_doubles(const NDArray& array, std::size_t size) {
  const P* values = array.data<const P>();
  return std::vector<double>(values, values + size);
}

template <class P>
void write_gradient(const NDArray& array, Request request, const std::vector<double>& values) {
  if (request == kNull) return;
  P* gradient = array.data<P>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double before = request == kAdd ? static_cast<double>(gradient[i]) : 0.0;
    gradient[i] = static_cast<P>(before + values[i]);
  }
}

template <class P>
void move_average(const NDArray& array, double momentum, const std::vector<double>& batch) {
  P* running = array.data<P>();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    running[i] =
        static_cast<P>(static_cast<double>(running[i]) * momentum + batch[i] * (1.0 - momentum));
  }
}

std::vector<double> inverse_deviations(const std::vector<double>& variances, double eps) {
  std::vector<double> inverse;
  inverse.reserve(variances.size());
  for (const double variance : variances) inverse.push_back(1.0 / std::sqrt(variance + eps));
  return inverse;
}

}  // namespace

struct Operator::ForwardCall {
  std::vector<NDArray> arrays;
  Request request;
  bool is_train;
};

struct Operator::BackwardCall {
  std::vector<NDArray> arrays;
  std::vector<Request> requests;
  std::shared_ptr<const Statistics> statistics;
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

Operator::Operator(Attributes attributes, Device device, std::shared_ptr<Meeting> meeting,
                   std::shared_ptr<PendingForwards> pending, UpdatePlace update_place)
    : attributes_(std::move(attributes)),
      device_(std::move(device)),
      meeting_(std::move(meeting)),
      pending_(std::move(pending)),
      update_place_(std::move(update_place)),
      ticket_(meeting_ ? meeting_->announce(device_) : 0) {}

void Operator::forward(std::vector<NDArray> arrays, Request request, bool is_train) {
  using namespace forward_at;
  const DType dtype = arrays[kData].dtype();
  std::vector<std::size_t> written{kOut, kMovingMean, kMovingVar};
  if (!attributes_.momentum) written.push_back(kNumBatches);
  push_call(std::make_shared<ForwardCall>(ForwardCall{std::move(arrays), request, is_train}),
            written, "SyncBatchNormForward",
            [this, dtype](const auto& call, const Completion& completion) {
              with_types(dtype, [&](auto types) {
                run_forward<typename decltype(types)::Data, typename decltype(types)::Parameter>(
                    call, completion);
              });
            });
}

void Operator::backward(std::vector<NDArray> arrays, std::vector<Request> requests) {
  using namespace backward_at;
  const DType dtype = arrays[kData].dtype();
  push_call(std::make_shared<BackwardCall>(
                BackwardCall{std::move(arrays), std::move(requests), nullptr, {}}),
            {kDataGrad, kGammaGrad, kBetaGrad}, "SyncBatchNormBackward",
            [this, dtype](const auto& call, const Completion& completion) {
              with_types(dtype, [&](auto types) {
                run_backward<typename decltype(types)::Data, typename decltype(types)::Parameter>(
                    call, completion);
              });
            });
}

template <class Call, class Run>
void Operator::push_call(std::shared_ptr<Call> call, const std::vector<std::size_t>& outputs,
                         const char* name, Run run) {
  std::vector<NDArrayHandle> handles;
  for (const std::size_t position : outputs) handles.push_back(call->arrays[position].handle());
  push(device_, {}, handles, name, kNormal,
       [self = shared_from_this(), call = std::move(call), run](const Completion& completion) {
         guarded(self->attributes_.layer(), completion, [&] { run(call, completion); });
       });
}

template <class Part, class FinishTask, class MissedTask>
void Operator::meet(Exchange<Part>& exchange, Part part, const Completion& completion,
                    const char* name, FinishTask finish, MissedTask missed) {
  auto complete = [self = shared_from_this(), completion, finish](const Part& merged) {
    if (guarded(self->attributes_.layer(), completion, [&] { finish(merged); })) {
      completion.succeed();
    }
  };
  exchange.arrive(device_, std::move(part),
                  [self = shared_from_this(), completion, complete, missed, name](
                      const Outcome<Part>& outcome, CalledOn called_on) {
                    if (!outcome) {
                      missed();
                      completion.fail(outcome.error);
                    } else if (called_on == CalledOn::kOwnThread) {
                      complete(*outcome.merged);
                    } else {
                      guarded(self->attributes_.layer(), completion, [&] {
                        post(self->device_, name,
                             [complete, merged = outcome.merged] { complete(*merged); });
                      });
                    }
                  });
}

template <class P>
std::vector<double> Operator::gamma(const NDArray& array, std::size_t channels) const {
  return attributes_.fix_gamma ? std::vector<double>(channels, 1.0)
                               : to_doubles<P>(array, channels);
}

Layout Operator::layout(const NDArray& data) const {
  const auto shape = data.shape();
  return Layout::of(shape, attributes_.axis_of(shape.size()));
}

template <class T, class P>
void Operator::run_forward(const std::shared_ptr<ForwardCall>& call, const Completion& completion) {
  using namespace forward_at;
  const NDArray& data = call->arrays[kData];
  const Layout layout = this->layout(data);
  const auto channels = static_cast<std::size_t>(layout.channels);

  if (!call->is_train || attributes_.use_global_stats) {
    if (meeting_ && !attributes_.use_global_stats) meeting_->saw_inference(device_);
    Statistics running;
    running.mean = to_doubles<P>(call->arrays[kMovingMean], channels);
    running.inv_std =
        inverse_deviations(to_doubles<P>(call->arrays[kMovingVar], channels), attributes_.eps);
    statistics_ = std::make_shared<const Statistics>(std::move(running));
    normalize<T, P>(*call, *statistics_);
    completion.succeed();
    return;
  }
  require_no_mirroring();
  if (attributes_.sync_group_size && !attributes_.group_of(device_.index)) {
    throw Error("called on " + device_.name() + ", which is in no group: sync_group_size=" +
                std::to_string(attributes_.group_size()) + " groups the devices " +
                attributes_.device_list());
  }
  if (!meeting_) {
    finish_forward<T, P>(*call, cpu::moments(data.data<const T>(), layout), nullptr);
    completion.succeed();
    return;
  }

  statistics_ = nullptr;
  const auto round = meeting_->join(device_, runs_ == 0 ? ticket_ : Roll::kJustMade);
  const auto give_up = [this, call] {
    pending_->end(device_, shared_from_this());
    update_running<P>(*call, std::nullopt);
  };
  Moments own;
  try {
    pending_->begin(device_, shared_from_this(), runs_++);
    round->agree(device_, {layout.channels, dtype_name(data.dtype()), attributes_.eps,
                           attributes_.momentum});
    own = cpu::moments(data.data<const T>(), layout);
  } catch (const std::exception& error) {
    round->fail(device_, error.what());
    give_up();
    throw;
  }
  meet(
      round->forward(), std::move(own), completion, "SyncBatchNormNormalize",
      [this, call, round](const Moments& merged) {
        try {
          finish_forward<T, P>(*call, merged, round);
        } catch (const std::exception& error) {
          round->fail(device_, error.what());  // for its peers in backward
          throw;
        }
      },
      give_up);
}

template <class T, class P>
void Operator::finish_forward(const ForwardCall& call, const Moments& moments,
                              std::shared_ptr<Round> round) {
  BatchStatistics batch{moments.mean, moments.m2};
  for (double& variance : batch.variance) variance /= static_cast<double>(moments.count);
  statistics_ = std::make_shared<const Statistics>(
      Statistics{moments.mean, inverse_deviations(batch.variance, attributes_.eps), moments.count,
                 true, std::move(round)});
  update_running<P>(call, std::move(batch));
  normalize<T, P>(call, *statistics_);
}

template <class P>
void Operator::update_running(const ForwardCall& call, std::optional<BatchStatistics> batch) {
  const auto apply = [&](const BatchStatistics& due) {
    const double momentum = next_momentum<P>(call);
    move_average<P>(call.arrays[forward_at::kMovingMean], momentum, due.mean);
    move_average<P>(call.arrays[forward_at::kMovingVar], momentum, due.variance);
  };
  if (update_place_.order) {
    update_place_.order->update(update_place_.use, std::move(batch), apply);
  } else if (batch) {
    apply(*batch);
  }
}

template <class P>
double Operator::next_momentum(const ForwardCall& call) const {
  if (attributes_.momentum) return *attributes_.momentum;
  P* count = call.arrays[forward_at::kNumBatches].data<P>();
  const double batches = static_cast<double>(*count) + 1.0;
  *count = static_cast<P>(batches);
  return 1.0 - 1.0 / batches;
}

template <class T, class P>
void Operator::normalize(const ForwardCall& call, const Statistics& statistics) const {
  using namespace forward_at;
  if (call.request == kNull) return;
  const std::size_t channels = statistics.mean.size();
  cpu::Normalization normalization{statistics.mean, gamma<P>(call.arrays[kGamma], channels),
                                   to_doubles<P>(call.arrays[kBeta], channels)};
  for (std::size_t c = 0; c < channels; ++c) normalization.scale[c] *= statistics.inv_std[c];
  cpu::normalize(call.arrays[kData].data<const T>(), layout(call.arrays[kData]), normalization,
                 write_of(call.request), call.arrays[kOut].data<T>());
}

template <class T, class P>
void Operator::run_backward(const std::shared_ptr<BackwardCall>& call,
                            const Completion& completion) {
  using namespace backward_at;
  if (!statistics_) throw Error("backward without a forward pass that succeeded");
  if (pending_) pending_->end(device_, shared_from_this());
  call->statistics = statistics_;
  const NDArray& data = call->arrays[kData];
  const auto sum = [&] {
    call->own = cpu::gradient_sums(call->arrays[kOutGrad].data<const T>(), data.data<const T>(),
                                   layout(data), call->statistics->mean);
  };
  if (!call->statistics->round) {
    sum();
    finish_backward<T, P>(*call, call->own);
    completion.succeed();
    return;
  }

  const auto exchange = call->statistics->round->next_backward(device_);
  try {
    sum();
  } catch (const std::exception& error) {
    exchange->fail("failed on " + device_.name() + ": " + error.what());
    throw;
  }
  meet(
      *exchange, GradientSums(call->own), completion, "SyncBatchNormInputGradient",
      [this, call](const GradientSums& merged) { finish_backward<T, P>(*call, merged); }, [] {});
}

template <class T, class P>
void Operator::finish_backward(const BackwardCall& call, const GradientSums& all_devices) const {
  using namespace backward_at;
  const Statistics& statistics = *call.statistics;
  const std::size_t channels = statistics.mean.size();

  // The trainer adds up the gradients of parameters over devices, so each gives its own share.
  std::vector<double> gamma_gradient(channels, 0.0);
  if (!attributes_.fix_gamma) {
    for (std::size_t c = 0; c < channels; ++c) {
      gamma_gradient[c] = call.own.dy_centered[c] * statistics.inv_std[c];
    }
  }
  write_gradient<P>(call.arrays[kGammaGrad], call.request(kGammaGrad), gamma_gradient);
  write_gradient<P>(call.arrays[kBetaGrad], call.request(kBetaGrad), call.own.dy);
  if (call.request(kDataGrad) == kNull) return;

  cpu::InputGradient gradient{statistics.mean, gamma<P>(call.arrays[kGamma], channels),
                              std::vector<double>(channels), std::vector<double>(channels)};
  for (std::size_t c = 0; c < channels; ++c) {
    const double inv_std = statistics.inv_std[c];
    gradient.dy_factor[c] *= inv_std;
    if (!statistics.of_batch) continue;
    const double factor = gradient.dy_factor[c] / static_cast<double>(statistics.count);
    gradient.x_factor[c] = -factor * all_devices.dy_centered[c] * inv_std * inv_std;
    gradient.constant[c] = -factor * all_devices.dy[c];
  }
  cpu::input_gradient(call.arrays[kOutGrad].data<const T>(), call.arrays[kData].data<const T>(),
                      layout(call.arrays[kData]), gradient, write_of(call.request(kDataGrad)),
                      call.arrays[kDataGrad].data<T>());
}

}  // namespace gluon_syncbn::mxnet

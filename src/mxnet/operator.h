#ifndef GLUON_SYNCBN_MXNET_OPERATOR_H_
#define GLUON_SYNCBN_MXNET_OPERATOR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/device.h"
#include "mxnet/attributes.h"
#include "mxnet/engine.h"
#include "mxnet/ndarray.h"
#include "mxnet/update_order.h"
#include "norm/backend.h"
#include "sync/sync_group.h"

namespace gluon_syncbn::mxnet {

/// The operator's arguments, of which the last is there if it adds a shortcut.
enum Argument : std::size_t { kData, kGamma, kBeta, kShortcut };

/// Its auxiliary states, of which the last is there if it averages over all batches.
enum State : std::size_t { kMovingMean, kMovingVar, kNumBatches };

/// Where arrays stand in what MXNet passes to the callbacks: in forward the arguments, the output
/// and the states; in backward the gradient of the output, the arguments, the output, their
/// gradients and the states.
class Positions {
 public:
  explicit Positions(const Attributes& attributes)
      : arguments_(attributes.shortcut ? 4 : 3), states_(attributes.momentum ? 2 : 3) {}

  std::size_t arguments() const { return arguments_; }
  std::size_t states() const { return states_; }
  bool has(Argument argument) const { return argument < arguments_; }
  /// Whether what stands there in forward is like the data.
  bool is_data(std::size_t position) const {
    return position == kData || position == kShortcut || position == arguments_;
  }

  struct Forward {
    std::size_t arguments;
    std::size_t operator[](Argument argument) const { return argument; }
    std::size_t out() const { return arguments; }
    std::size_t operator[](State state) const { return arguments + 1 + state; }
  };
  struct Backward {
    std::size_t arguments;
    std::size_t out_gradient() const { return 0; }
    std::size_t operator[](Argument argument) const { return 1 + argument; }
    std::size_t out() const { return 1 + arguments; }
    std::size_t gradient(Argument argument) const { return 2 + arguments + argument; }
  };
  Forward forward() const { return {arguments_}; }
  Backward backward() const { return {arguments_}; }

 private:
  std::size_t arguments_;
  std::size_t states_;
};

/// The place of an operator among the uses of its layer in a graph.
struct GraphUse {
  std::shared_ptr<GraphUses> uses;  ///< empty if MXNet keeps the order of updates
  std::size_t place = 0;
};

/// The training forwards of one graph node that await their backward pass, on every device.
///
/// A static graph runs the same operator in every step and puts no order between two of its copies
/// (a network called twice before backward), so that devices could pair the first call of one with
/// the second call of another. That is refused in the step in which it can be recognized.
///
/// An operator that runs again without backward in between awaits none: a program that only moves
/// the running statistics, such as a Module that is bound again for a smaller last batch.
class PendingForwards {
 public:
  /// `runs` counts the earlier training forwards of `op`. Throws Error.
  void begin(const Device& device, const std::shared_ptr<void>& op, std::uint64_t runs);
  void end(const Device& device, const std::shared_ptr<void>& op);

 private:
  struct Pending {
    std::weak_ptr<void> op;
    std::uint64_t runs = 0;
    bool is_followed = true;
  };

  std::mutex mutex_;
  std::map<Device, Pending> pending_;
};

/// One use of the layer on one device. MXNet shares it between a forward pass and the backward
/// passes that follow from it, and runs these one after the other.
class Operator : public std::enable_shared_from_this<Operator> {
 public:
  /// `group` and `pending` may be empty if the layer has one device, `use` if it is in no graph.
  Operator(Attributes attributes, Device device, std::shared_ptr<Backend> backend,
           std::shared_ptr<SyncGroup> group, std::shared_ptr<PendingForwards> pending,
           GraphUse use);

  /// Both return at once and complete on the engine.
  void forward(std::vector<NDArray> arrays, OpReq request, bool is_train);
  /// `requests` has one for each argument.
  void backward(std::vector<NDArray> arrays, const int* requests);

 private:
  /// What a backward pass needs of its forward pass, beside the input.
  struct Forward {
    std::shared_ptr<const Statistics> statistics;
    std::int64_t count = 0;        ///< elements per channel on all devices
    bool of_batch = false;         ///< false if the running statistics were used
    std::shared_ptr<Round> round;  ///< empty if nothing was synchronized
  };
  struct Call;
  struct ForwardCall;
  struct BackwardCall;

  /// Runs `run` on the device's worker once the arrays are ready; what it throws is the call's
  /// error.
  template <class OneCall>
  void push_call(std::shared_ptr<OneCall> call, const char* name,
                 void (Operator::*run)(const std::shared_ptr<OneCall>&, const Completion&));
  void complete(const std::shared_ptr<Call>& call, const Completion& completion,
                const std::string& error) const;

  void run_forward(const std::shared_ptr<ForwardCall>& call, const Completion& completion);
  void run_inference(const std::shared_ptr<ForwardCall>& call, const Completion& completion);
  void run_backward(const std::shared_ptr<BackwardCall>& call, const Completion& completion);

  Backend::Normalization normalization_of(const std::shared_ptr<ForwardCall>& call,
                                          const Completion& completion);
  std::shared_ptr<DevicePass> pass_of(const std::shared_ptr<ForwardCall>& call,
                                      const Completion& completion);
  std::shared_ptr<DevicePass> pass_of(const std::shared_ptr<BackwardCall>& call,
                                      const Completion& completion);
  /// Decides the place of the update among those of the same running statistics.
  void reserve_update(ForwardCall* call) const;
  /// `batch` is null if it moves nothing, because it has no elements.
  Backend::Update update_of(ForwardCall* call, Backend::StatisticsPtr batch) const;
  /// Of a training forward that had begun.
  void forward_failed(ForwardCall* call, const std::string& error);
  Backend::Gradients gradients_of(const BackwardCall& call) const;

  /// Null for 1.
  const void* gamma(const NDArray& array) const;
  Backend::Data data_of(const NDArray& array) const;
  /// An array of the shape and dtype of the input, which may be gone.
  const NDArray& like_data(const BackwardCall& call) const;

  const Attributes attributes_;
  const Positions positions_;
  const Device device_;
  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<SyncGroup> group_;
  const std::shared_ptr<PendingForwards> pending_;
  const GraphUse use_;
  const Membership::Ticket ticket_;  ///< of the call that made this operator
  std::uint64_t runs_ = 0;           ///< training forwards begun
  std::shared_ptr<const Forward> forward_;
  std::string forward_error_;  ///< why there is no `forward_`
};

}  // namespace gluon_syncbn::mxnet

#endif  // GLUON_SYNCBN_MXNET_OPERATOR_H_

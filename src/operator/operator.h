#ifndef GLUON_SYNCBN_OPERATOR_OPERATOR_H_
#define GLUON_SYNCBN_OPERATOR_OPERATOR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/device.h"
#include "mxnet/engine.h"
#include "mxnet/ndarray.h"
#include "norm/backend.h"
#include "operator/attributes.h"
#include "operator/update_order.h"
#include "sync/sync_group.h"

namespace gluon_syncbn::op {

/// The operator's arguments, of which the last is there if it adds a shortcut.
enum Argument : std::size_t { kData, kGamma, kBeta, kShortcut };
inline constexpr const char* kArgumentNames[] = {"data", "gamma", "beta", "shortcut"};

/// Its auxiliary states, of which the last is there if it averages over all batches.
enum AuxiliaryState : std::size_t { kMovingMean, kMovingVar, kNumBatches };
inline constexpr const char* kStateNames[] = {"moving_mean", "moving_var", "num_batches_tracked"};

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
    std::size_t operator[](AuxiliaryState state) const { return arguments + 1 + state; }
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
  void forward(std::vector<mxnet::NDArray> arrays, mxnet::OpReq request, bool is_train);
  /// `requests` has one for each argument.
  void backward(std::vector<mxnet::NDArray> arrays, const int* requests);

 private:
  /// What a backward pass needs of its forward pass, beside the input.
  struct Saved {
    StatisticsPtr statistics;
    std::int64_t count = 0;        ///< elements per channel on all devices
    bool of_batch = false;         ///< false if the running statistics were used
    std::shared_ptr<Round> round;  ///< empty if nothing was synchronized
  };
  class EngineCall;
  class ForwardCall;
  class BackwardCall;

  const Attributes attributes_;
  const Positions positions_;
  const Device device_;
  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<SyncGroup> group_;
  const std::shared_ptr<PendingForwards> pending_;
  const GraphUse use_;
  const Membership::Ticket ticket_;  ///< of the call that made this operator
  std::uint64_t runs_ = 0;           ///< training forwards begun
  std::shared_ptr<const Saved> saved_;
  std::string forward_error_;  ///< why nothing is saved
};

}  // namespace gluon_syncbn::op

#endif  // GLUON_SYNCBN_OPERATOR_OPERATOR_H_

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "common/device.h"
#include "mxnet/c_api.h"
#include "mxnet/ndarray.h"
#include "operator/attributes.h"
#include "operator/node_calls.h"
#include "operator/positions.h"
#include "sync/barrier.h"

namespace gluon_syncbn::op {

/// One use of the layer on one device. MXNet uses one Operator for a forward pass and its backward
/// passes, and in static graphs for every step. It runs these passes one after the other.
class Operator : public std::enable_shared_from_this<Operator> {
 public:
  /// `barrier` is empty if the layer has one device.
  Operator(Attributes attributes, Device device, const Backend& backend,
           std::shared_ptr<Barrier> barrier, std::shared_ptr<NodeCalls> node_calls)
      : attributes_(std::move(attributes)),
        positions_(attributes_),
        device_(std::move(device)),
        backend_(backend),
        barrier_(std::move(barrier)),
        node_calls_(std::move(node_calls)) {
    if (barrier_) epoch_ = barrier_->announce(device_);
  }

  /// Both push a call to the engine. On a GPU the call may run before they return.
  void forward(std::vector<mxnet::NDArray> arrays, mxnet::OpReq request, bool is_train);
  /// `requests` has an OpReq for each argument.
  void backward(std::vector<mxnet::NDArray> arrays, const int* requests);

  /// Says which operator this one repeats, if it runs before the backward pass of `original`.
  void may_repeat(const std::shared_ptr<Operator>& original) { original_ = original; }

 private:
  friend class EngineCall;
  friend class ForwardCall;
  friend class BackwardCall;

  /// Called by each training forward. Returns whether it repeats that of the original operator.
  bool begin_training(const void* running_mean, const std::vector<std::int64_t>& data);

  const Attributes attributes_;
  const Positions positions_;
  const Device device_;
  const Backend& backend_;
  const std::shared_ptr<Barrier> barrier_;
  const std::shared_ptr<NodeCalls> node_calls_;
  std::optional<Calls::Epoch> epoch_;  ///< of the call that made this operator, until it runs
  bool ran_before_ = false;            ///< has begun a training forward
  std::weak_ptr<Operator> original_;   ///< empty if operators are not mirrored
  /// Identifies the arrays of a training forward that may be repeated before its backward pass; 0
  /// if there is none.
  std::atomic<std::size_t> may_be_repeated_{0};
  std::uint64_t failures_before_ = 0;  ///< FailedSteps::passes() when the last forward pass began
  // Of the last forward pass; empty if it failed, but for its error.
  std::optional<Saved> saved_;
  std::shared_ptr<Barrier::Round> round_;  ///< empty if nothing was synchronized
  std::string forward_error_;              ///< why nothing is saved
};

/// Says whether the layer of `key` was a BatchNorm whose gamma and beta are not trained. Its first
/// training forward prints a warning.
void set_frozen(const std::string& key, bool is_frozen);

}  // namespace gluon_syncbn::op

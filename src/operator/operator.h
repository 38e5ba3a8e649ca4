#ifndef GLUON_SYNCBN_OPERATOR_OPERATOR_H_
#define GLUON_SYNCBN_OPERATOR_OPERATOR_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "common/device.h"
#include "mxnet/c_api.h"
#include "mxnet/ndarray.h"
#include "operator/attributes.h"
#include "operator/pending_forwards.h"
#include "operator/positions.h"
#include "sync/sync_group.h"

namespace gluon_syncbn::op {

/// One use of the layer on one device. MXNet shares it between a forward pass and the backward
/// passes that follow from it, and runs these one after the other.
class Operator : public std::enable_shared_from_this<Operator> {
 public:
  /// `group` and `pending` may be empty if the layer has one device.
  Operator(Attributes attributes, Device device, std::shared_ptr<Backend> backend,
           std::shared_ptr<SyncGroup> group, std::shared_ptr<PendingForwards> pending);

  /// Both return at once and complete on the engine.
  void forward(std::vector<mxnet::NDArray> arrays, mxnet::OpReq request, bool is_train);
  /// `requests` has one for each argument.
  void backward(std::vector<mxnet::NDArray> arrays, const int* requests);

 private:
  /// The results of a forward pass that its backward pass needs, beside arrays.
  struct Saved {
    Backend::Saved statistics;
    bool of_batch = false;         ///< false if the running statistics were used
    std::shared_ptr<Round> round;  ///< empty if nothing was synchronized
  };
  friend class EngineCall;
  friend class ForwardCall;
  friend class BackwardCall;

  const Attributes attributes_;
  const Positions positions_;
  const Device device_;
  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<SyncGroup> group_;
  const std::shared_ptr<PendingForwards> pending_;
  std::optional<SyncGroup::Ticket> ticket_;  ///< of the call that made this operator, until it runs
  bool ran_before_ = false;                  ///< has begun a training forward
  std::shared_ptr<const Saved> saved_;
  std::string forward_error_;  ///< why nothing is saved
};

}  // namespace gluon_syncbn::op

#endif  // GLUON_SYNCBN_OPERATOR_OPERATOR_H_

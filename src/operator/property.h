#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "norm/variants.h"
#include "operator/attributes.h"
#include "operator/operator.h"
#include "sync/barrier.h"

namespace gluon_syncbn::op {

using Shape = std::vector<int>;

/// One node of a graph, or one imperative call. Infers its shapes and dtypes, and keeps the groups
/// of devices that meet by this node. MXNet shares it between the devices that run a graph.
class Property {
 public:
  explicit Property(Attributes attributes) : attributes_(std::move(attributes)) {}

  struct Shapes {
    Shape data;
    Shape parameter;
    Shape count{1};

    Shape& of(Role role) {
      return role == Role::kData ? data : role == Role::kCount ? count : parameter;
    }
  };
  /// The positions of the arrays that MXNet passes to the callbacks.
  Positions positions() const { return Positions(attributes_); }

  BackwardReads backward_reads() const { return reads_of(attributes_.dz_from()); }

  /// -1 stands for a dimension that is not known yet. `given` are the shapes of the arguments, the
  /// output and the auxiliary states; nullopt if even the number of dimensions is not known, as
  /// that of the output. Throws mxnet::UnknownShapes if that of the data is nullopt.
  Shapes infer_shapes(const std::vector<std::optional<Shape>>& given) const;

  /// Throws Error if a node with this number of inputs is not a node of this operator.
  void require_inputs(std::size_t number) const;

  struct DTypes {
    mxnet::MXDType data;
    mxnet::MXDType parameter;

    mxnet::MXDType of(Role role) const { return role == Role::kData ? data : parameter; }
  };
  /// `given` are the dtypes of the arguments, the output and the auxiliary states.
  DTypes infer_dtypes(const std::vector<int>& given) const;

  /// Throws Error if the array `name` is sparse.
  void require_dense(const std::string& name, int storage) const;

  std::shared_ptr<Operator> create_operator(const std::string& context);

 private:
  std::shared_ptr<Barrier> barrier(const Device& device);
  std::shared_ptr<ProcessRounds> process_rounds() const;

  const Attributes attributes_;
  std::mutex mutex_;
  std::map<std::size_t, std::shared_ptr<Barrier>> barriers_;  // by group
  std::map<Device, std::weak_ptr<Operator>> latest_;          // if they are mirrored
  const std::shared_ptr<NodeCalls> node_calls_ = std::make_shared<NodeCalls>();
};

}  // namespace gluon_syncbn::op

#pragma once

#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fake_mxnet/engine.h"
#include "fake_mxnet/ndarray.h"
#include "mxnet/c_api.h"

namespace gluon_syncbn::fake_mxnet {

using Attributes = std::vector<std::pair<std::string, std::string>>;

void register_custom_op(mxnet::PropertyCreator creator);

/// An operator with one output on one device. The engine runs one call of it at a time.
class CustomOp : public std::enable_shared_from_this<CustomOp> {
 public:
  CustomOp(std::shared_ptr<mxnet::CallbackList> callbacks, const mxnet::Context& context,
           std::size_t num_arguments, std::vector<int> backward_inputs)
      : callbacks_(std::move(callbacks)),
        context_(context),
        num_arguments_(num_arguments),
        backward_inputs_(std::move(backward_inputs)) {}

  /// Both return before it is done. `inputs` are the arguments and the auxiliary states; in a
  /// static graph MXNet puts no order between two operators with the same of these.
  void forward(const std::vector<NDArray>& inputs, const NDArray& output, bool is_train,
               bool in_static_graph, mxnet::OpReq request = mxnet::kWrite);
  /// `gradients` are those of the arguments.
  void backward(const NDArray& output_gradient, const std::vector<NDArray>& inputs,
                const NDArray& output, const std::vector<NDArray>& gradients,
                const std::vector<mxnet::OpReq>& requests);

 private:
  void push(std::size_t callback, std::vector<NDArray> arrays,
            const std::vector<mxnet::OpReq>& requests, bool is_train,
            std::vector<VariablePtr> reads, std::vector<VariablePtr> writes);

  const std::shared_ptr<mxnet::CallbackList> callbacks_;
  const mxnet::Context context_;
  const std::size_t num_arguments_;
  const std::vector<int> backward_inputs_;
  const VariablePtr variable_ = std::make_shared<Variable>();
};

/// Holds the operator whose callback is called next, as if the machine did not run its thread. What
/// the callback has pushed must fail; the operator takes that error when this goes.
class HeldCustomOp {
 public:
  HeldCustomOp();
  ~HeldCustomOp() { go_on_.set_value(); }
  HeldCustomOp(const HeldCustomOp&) = delete;
  HeldCustomOp& operator=(const HeldCustomOp&) = delete;

  void wait_until_held() { held_.get_future().wait(); }

 private:
  std::promise<void> held_;
  std::promise<void> go_on_;
};

/// A node of a graph, with the property that the library has made for its attributes. Devices that
/// run one graph share it; an imperative call has one of its own.
class Node {
 public:
  /// Throws what the library throws, as does create_operator().
  explicit Node(const Attributes& attributes);

  /// Infers shapes and dtypes as MXNet does before.
  std::shared_ptr<CustomOp> create_operator(const mxnet::Context& context,
                                            const std::vector<NDArray>& inputs) const;

 private:
  std::size_t count(std::size_t callback) const;
  void infer(const std::vector<NDArray>& inputs) const;

  std::shared_ptr<mxnet::CallbackList> property_;
};

}  // namespace gluon_syncbn::fake_mxnet

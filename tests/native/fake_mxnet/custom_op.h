#ifndef GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_CUSTOM_OP_H_
#define GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_CUSTOM_OP_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fake_mxnet/engine.h"
#include "fake_mxnet/ndarray.h"
#include "fake_mxnet/types.h"

namespace gluon_syncbn::host {

/// Operators of C callbacks: custom.cc and custom-inl.h. Sparse arrays, inferring storage types and
/// profiling are left out.
void register_custom_op(const std::string& op_type, PropertyCreator creator);

/// One node: its attributes, as the operator's property understood them (custom.cc, CustomParam and
/// AttrParser). Copies share the property, which is deleted with the last of them.
struct CustomNode {
  std::shared_ptr<CallbackList> property;
  std::size_t num_arguments = 0;
  std::size_t num_outputs = 0;
  std::size_t num_auxiliary = 0;
  std::vector<int> backward_inputs;

  static CustomNode parse(const std::vector<std::pair<std::string, std::string>>& attributes);

  std::size_t num_inputs() const { return num_arguments + num_auxiliary; }
  /// Fill in what is empty of the outputs; throw Error where something contradicts. Inputs are the
  /// arguments and the auxiliary states.
  void infer_shapes(std::vector<Shape>* inputs, std::vector<Shape>* outputs) const;
  void infer_types(std::vector<int>* inputs, std::vector<int>* outputs) const;
};

/// An operator of a node on one device (OpStatePtr). The engine runs one call of it at a time. Does
/// not keep the node's property.
class CustomState {
 public:
  CustomState(const CustomNode& node, const Context& context, const std::vector<Shape>& shapes,
              const std::vector<int>& dtypes);
  ~CustomState();
  CustomState(const CustomState&) = delete;
  CustomState& operator=(const CustomState&) = delete;

  Variable* variable() const { return variable_; }
  const CustomNode& node() const { return node_; }
  const std::shared_ptr<CallbackList>& callbacks() const { return callbacks_; }

 private:
  const CustomNode node_;  // without its property
  Variable* variable_ = nullptr;
  std::shared_ptr<CallbackList> callbacks_;
};

/// What an operation of the engine hands on (OpContext).
struct OpContext {
  bool is_train;
  RunContext run_context;
  OnComplete on_complete;
};

/// Both call the operator's callback on a thread made for such calls, and complete on a worker of
/// the device when what the callback has pushed to write its arrays is over.
void run_forward(const std::shared_ptr<CustomState>& state, const OpContext& context,
                 const std::vector<NDArray>& inputs, const std::vector<OpReq>& requests,
                 const std::vector<NDArray>& outputs);
void run_backward(const std::shared_ptr<CustomState>& state, const OpContext& context,
                  const std::vector<NDArray>& inputs, const std::vector<OpReq>& requests,
                  const std::vector<NDArray>& outputs);

/// Ends the threads when they have run all calls.
void stop_custom_ops();

}  // namespace gluon_syncbn::host

#endif  // GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_CUSTOM_OP_H_

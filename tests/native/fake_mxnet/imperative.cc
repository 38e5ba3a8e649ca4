#include "fake_mxnet/imperative.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "fake_mxnet/custom_op.h"
#include "fake_mxnet/device_kind.h"

namespace gluon_syncbn::host {

/// A variable, or a recorded operator (nnvm::Node with Imperative::AGInfo).
struct Node {
  std::vector<NDArray> outputs;  // of a variable: itself; as far as backward needs them
  bool in_graph = true;          // AGInfo is there; false after backward has cleared it

  NDArray gradient;  // of a variable
  OpReq request = kNull;

  std::optional<CustomNode> op;
  std::shared_ptr<CustomState> state;
  Context context;
  std::vector<Entry> inputs;
};

namespace {

thread_local bool the_recording = false;
thread_local bool the_training = false;

bool in_graph(const NDArray& array) { return array.entry.node && array.entry.node->in_graph; }

/// imperative_utils.h, PushOperator for ExecType::kAsync.
void push_operator(const CustomNode& op, const std::shared_ptr<CustomState>& state,
                   bool is_backward, const Context& context, const std::vector<NDArray>& inputs,
                   const std::vector<OpReq>& requests, const std::vector<NDArray>& outputs,
                   const std::vector<NDArray>& also_written) {
  std::vector<Variable*> reads;
  std::vector<Variable*> writes;
  for (const NDArray& input : inputs) reads.push_back(input.variable());
  for (const auto* arrays : {&outputs, &also_written}) {
    for (const NDArray& array : *arrays) writes.push_back(array.variable());
  }
  deduplicate(&reads, &writes);
  writes.push_back(state->variable());
  const auto run = is_backward ? &run_backward : &run_forward;
  Engine::get().push_async(
      // The operation keeps the property too.
      [=, property = op.property, is_train = is_training()](const RunContext& run_context,
                                                            const OnComplete& on_complete) {
        run(state, {is_train, run_context, on_complete}, inputs, requests, outputs);
      },
      context, std::move(reads), std::move(writes), Property::kAsync);
}

/// imperative.cc, RecordOp.
void record(const CustomNode& op, const std::shared_ptr<CustomState>& state, const Context& context,
            const std::vector<NDArray*>& inputs, NDArray* output) {
  if (std::none_of(inputs.begin(), inputs.end(), [](const NDArray* i) { return in_graph(*i); })) {
    return;
  }
  std::vector<bool> needed(inputs.size(), false);
  for (const int i : op.backward_inputs) {
    const auto place = static_cast<std::size_t>(i);
    const bool is_input = place >= op.num_outputs && place < op.num_outputs + op.num_arguments;
    if (is_input) needed[place - op.num_outputs] = true;
  }
  std::fill(needed.begin() + static_cast<std::ptrdiff_t>(op.num_arguments), needed.end(), true);

  const auto node = std::make_shared<Node>();
  node->op = op;
  node->state = state;
  node->context = context;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    NDArray& input = *inputs[i];
    if (!in_graph(input)) {
      input.entry = {std::make_shared<Node>(), 0};
      input.entry.node->outputs = {NDArray{nullptr, input.shape, input.dtype, {}}};
    }
    if (needed[i]) input.entry.node->outputs[input.entry.index] = input.detach();
    node->inputs.push_back(input.entry);
  }
  node->outputs = {NDArray{nullptr, output->shape, output->dtype, {}}};
  output->entry = {node, 0};
}

/// All that `start` depends on, each behind what it depends on itself (nnvm, DFSVisit).
template <class N, class Inputs>
void visit(const std::shared_ptr<N>& start, const Inputs& inputs, std::set<const void*>* seen,
           std::vector<std::shared_ptr<N>>* order) {
  if (!start || !seen->insert(start.get()).second) return;
  for (const auto& input : inputs(*start)) visit(input, inputs, seen, order);
  order->push_back(start);
}

/// One operation of backward: that of a recorded node, a sum of gradients, or neither, where the
/// gradient is given.
struct Gradient {
  struct Use {
    std::shared_ptr<Gradient> of;
    std::size_t index = 0;
  };

  std::shared_ptr<Node> forward;
  std::vector<Use> inputs;
  std::vector<NDArray> outputs;
  std::vector<OpReq> requests;
};

/// pass/gradient.cc with graph_executor.cc, AggregateGradient: more than one gradient of the same
/// array is summed by an operation of its own.
Gradient::Use aggregate(const std::vector<Gradient::Use>& uses) {
  if (uses.size() == 1) return uses.front();
  // MXNet adds up eight and more in another way (MXNET_EXEC_INPLACE_GRAD_SUM_CAP).
  if (uses.size() >= 8) throw Error("the stand-in adds up at most 7 gradients of one array");
  return {std::make_shared<Gradient>(Gradient{nullptr, uses, {}, {}}), 0};
}

class Backward {
 public:
  Backward(const std::vector<NDArray*>& outputs, const std::vector<NDArray*>& output_gradients) {
    std::set<const void*> seen;
    const auto inputs = [](const Node& node) {
      std::vector<std::shared_ptr<Node>> nodes;
      for (const Entry& input : node.inputs) nodes.push_back(input.node);
      return nodes;
    };
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Entry& entry = outputs[i]->entry;
      visit(entry.node, inputs, &seen, &forward_);
      const auto given = std::make_shared<Gradient>();
      given->outputs = {*output_gradients[i]};
      given->requests = {kWrite};
      uses_[{entry.node.get(), entry.index}].push_back({given, 0});
    }
    // Graphs share the nodes of arrays that nobody has marked, and the first backward clears them.
    for (const auto& node : forward_) {
      if (!node->in_graph)
        throw Error("Check failed: type_ != nullptr: The any container is empty");
    }
  }

  void run(bool is_train) {
    differentiate();
    const Recording recording(false, is_train);
    for (const auto& gradient : order_) {
      if (gradient->forward) {
        run_node(*gradient);
      } else if (!gradient->inputs.empty()) {
        run_sum(*gradient);
      }
    }
  }

  /// The graph is used up, but for its variables (AGInfo::Clear).
  void clear() {
    for (const auto& node : forward_) {
      if (node->request == kNull) {
        node->in_graph = false;
        node->outputs.clear();
        node->state = nullptr;
      }
      node->inputs.clear();
    }
  }

 private:
  void differentiate() {
    for (auto at = forward_.rbegin(); at != forward_.rend(); ++at) {
      const auto& node = *at;
      if (!node->op) continue;
      const auto out = uses_.find({node.get(), 0});
      if (out == uses_.end()) continue;
      const CustomNode& op = *node->op;
      const auto gradient = std::make_shared<Gradient>();
      gradient->forward = node;
      gradient->inputs = {aggregate(out->second)};
      gradient->outputs.resize(op.num_arguments);
      gradient->requests.assign(op.num_arguments, kNull);
      for (std::size_t i = 0; i < op.num_arguments; ++i) {
        const Entry& input = node->inputs[i];
        uses_[{input.node.get(), input.index}].push_back({gradient, i});
      }
    }
    const auto inputs = [](const Gradient& gradient) {
      std::vector<std::shared_ptr<Gradient>> all;
      for (const auto& input : gradient.inputs) all.push_back(input.of);
      return all;
    };
    std::set<const void*> seen;
    for (const auto& node : forward_) {
      if (node->op || node->request == kNull) continue;
      const auto found = uses_.find({node.get(), 0});
      if (found == uses_.end()) continue;
      const auto result = aggregate(found->second);
      if (!result.of->forward && result.of->inputs.empty()) {
        throw Error("the stand-in differentiates what an operator made");
      }
      result.of->outputs.resize(std::max(result.of->outputs.size(), result.index + 1));
      result.of->requests.resize(result.of->outputs.size(), kNull);
      result.of->outputs[result.index] = node->gradient;
      result.of->requests[result.index] = node->request;
      visit(result.of, inputs, &seen, &order_);
    }
    for (const auto& gradient : order_) {
      for (const auto& input : gradient->inputs) want(*input.of, input.index);
    }
  }

  /// Somebody reads this output; where it is not a variable's gradient, it needs memory.
  static void want(Gradient& gradient, std::size_t index) {
    if (gradient.outputs.size() <= index) gradient.outputs.resize(index + 1);
    if (gradient.requests.size() <= index) gradient.requests.resize(index + 1, kNull);
    if (gradient.requests[index] == kNull) gradient.requests[index] = kWrite;
  }

  static NDArray array_of(const Gradient::Use& use) { return use.of->outputs[use.index]; }

  static void run_node(Gradient& gradient) {
    const Node& node = *gradient.forward;
    const CustomNode& op = *node.op;
    const auto value = [&](std::size_t input) {
      return node.inputs[input].node->outputs[node.inputs[input].index];
    };
    std::vector<NDArray> inputs;
    for (const int i : op.backward_inputs) {
      const auto place = static_cast<std::size_t>(i);
      if (place >= op.num_outputs + op.num_arguments) {
        throw Error("the stand-in keeps no outputs for backward");
      }
      inputs.push_back(place < op.num_outputs ? array_of(gradient.inputs[place])
                                              : value(place - op.num_outputs));
    }
    for (std::size_t i = 0; i < op.num_auxiliary; ++i)
      inputs.push_back(value(op.num_arguments + i));
    for (std::size_t i = 0; i < gradient.outputs.size(); ++i) {
      if (!gradient.outputs[i].is_none()) continue;
      const NDArray& like = node.inputs[i].node->outputs[node.inputs[i].index];
      gradient.outputs[i] = NDArray::make(like.shape, like.dtype, node.context);
    }
    push_operator(op, node.state, true, node.context, inputs, gradient.requests, gradient.outputs,
                  {});
  }

  static void run_sum(Gradient& gradient) {
    std::vector<NDArray> inputs;
    for (const auto& use : gradient.inputs) inputs.push_back(array_of(use));
    const NDArray& first = inputs.front();
    if (gradient.outputs.empty() || gradient.outputs.front().is_none()) {
      gradient.outputs = {NDArray::make(first.shape, first.dtype, first.context())};
      gradient.requests = {kWrite};
    }
    const NDArray out = gradient.outputs.front();
    std::vector<Variable*> reads;
    std::vector<Variable*> writes{out.variable()};
    for (const NDArray& input : inputs) reads.push_back(input.variable());
    deduplicate(&reads, &writes);
    Engine::get().push_sync(
        [inputs, out, request = gradient.requests.front()](const RunContext& run_context) {
          std::vector<const void*> data;
          for (const NDArray& input : inputs) data.push_back(input.chunk->data());
          DeviceKind::of(run_context.context.dev_type)
              .sum(run_context.context.dev_id, out.dtype, data, out.size(), request,
                   out.chunk->data());
        },
        out.context(), std::move(reads), std::move(writes));
  }

  std::vector<std::shared_ptr<Node>> forward_;
  std::map<std::pair<const Node*, std::size_t>, std::vector<Gradient::Use>> uses_;
  std::vector<std::shared_ptr<Gradient>> order_;
};

}  // namespace

bool is_recording() { return the_recording; }
bool is_training() { return the_training; }
bool set_recording(bool value) { return std::exchange(the_recording, value); }
bool set_training(bool value) { return std::exchange(the_training, value); }

std::vector<NDArray*> invoke(const std::vector<NDArray*>& inputs,
                             const std::vector<std::pair<std::string, std::string>>& attributes) {
  const CustomNode op = CustomNode::parse(attributes);
  if (inputs.size() != op.num_inputs()) {
    throw Error("Operator Custom expects " + std::to_string(op.num_inputs()) + " inputs, but got " +
                std::to_string(inputs.size()) + " instead.");
  }
  std::vector<Shape> shapes;
  std::vector<int> dtypes;
  std::vector<NDArray> values;
  for (const NDArray* input : inputs) {
    shapes.push_back(input->shape);
    dtypes.push_back(input->dtype);
    values.push_back(input->detach());
  }
  std::vector<Shape> out_shapes(op.num_outputs);
  std::vector<int> out_dtypes(op.num_outputs, kNoDType);
  op.infer_shapes(&shapes, &out_shapes);
  op.infer_types(&dtypes, &out_dtypes);

  const Context context = inputs.front()->context();
  const auto state = std::make_shared<CustomState>(op, context, shapes, dtypes);
  std::vector<NDArray> outputs;
  for (std::size_t i = 0; i < op.num_outputs; ++i) {
    outputs.push_back(NDArray::make(out_shapes[i], out_dtypes[i], context));
  }
  const auto first_auxiliary = values.begin() + static_cast<std::ptrdiff_t>(op.num_arguments);
  push_operator(op, state, false, context, values, std::vector<OpReq>(op.num_outputs, kWrite),
                outputs, {first_auxiliary, values.end()});
  if (is_recording()) record(op, state, context, inputs, &outputs.front());

  std::vector<NDArray*> results;
  for (NDArray& output : outputs) results.push_back(new NDArray(std::move(output)));
  return results;
}

void mark_variable(NDArray* variable, OpReq request, NDArray* gradient) {
  const auto node = std::make_shared<Node>();
  node->outputs = {variable->detach()};
  node->gradient = gradient->detach();
  node->request = request;
  node->context = variable->context();
  variable->entry = {node, 0};
}

void backward(const std::vector<NDArray*>& outputs, const std::vector<NDArray*>& output_gradients,
              bool retain_graph, bool is_train) {
  for (const NDArray* output : outputs) {
    if (!in_graph(*output)) {
      throw Error("Cannot differentiate node because it is not in a computational graph.");
    }
  }
  Backward pass(outputs, output_gradients);
  pass.run(is_train);
  if (!retain_graph) pass.clear();
}

}  // namespace gluon_syncbn::host

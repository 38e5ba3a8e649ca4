// As src/operator/custom/custom.cc and custom-inl.h of MXNet 1.9.1 call the callbacks of an
// operator with one output: their order, arguments and threads, who owns what, and how an error
// gets from the operation that the library pushes to the operator's.

#include "fake_mxnet/custom_op.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

namespace gluon_syncbn::fake_mxnet {
namespace {

using mxnet::CallbackList;

namespace property_at {
enum : std::size_t {
  kDelete,
  kListArguments,
  kListOutputs,
  kListAuxiliaryStates,
  kInferShape,
  kDeclareBackwardDependency,
  kCreateOperator,
  kInferType,
  kInferStorageType
};
}
namespace operator_at {
enum : std::size_t { kDelete, kForward, kBackward };
}

// What each array is; the library knows that by their order.
constexpr int* kNoTags = nullptr;

mxnet::PropertyCreator the_creator = nullptr;

std::mutex holding;
std::function<void(const std::vector<VariablePtr>&)> hold_next;

/// Calls the callback at `at` with the context that belongs to it. What it throws passes through.
template <class... Arguments>
void call(const CallbackList& list, std::size_t at, Arguments... arguments) {
  const auto callback = reinterpret_cast<int (*)(Arguments..., void*)>(list.callbacks[at]);
  if (!callback(arguments..., list.contexts[at])) {
    throw Error("Check failed: callback " + std::to_string(at));
  }
}

/// Calls the deleter, which stands first, whatever the library has left in the list.
std::shared_ptr<CallbackList> make_list() {
  return {new CallbackList(), [](CallbackList* list) {
            if (list->num_callbacks > 0) call(*list, 0);
            delete list;
          }};
}

void add_variables(const std::vector<NDArray>& arrays, std::vector<VariablePtr>* variables) {
  for (const NDArray& array : arrays) {
    if (array.variable()) variables->push_back(array.variable());
  }
}

}  // namespace

void register_custom_op(mxnet::PropertyCreator creator) { the_creator = creator; }

HeldCustomOp::HeldCustomOp() {
  const std::shared_future<void> go_on(go_on_.get_future());
  const std::lock_guard<std::mutex> lock(holding);
  hold_next = [this, go_on](const std::vector<VariablePtr>& variables) {
    const auto has_failed = [](const VariablePtr& variable) {
      return variable->failure() != nullptr;
    };
    while (std::none_of(variables.begin(), variables.end(), has_failed)) std::this_thread::yield();
    held_.set_value();
    go_on.wait();
  };
}

Node::Node(const Attributes& attributes) : property_(make_list()) {
  std::vector<const char*> keys;
  std::vector<const char*> values;
  for (const auto& [key, value] : attributes) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
  if (!the_creator("SyncBatchNorm", static_cast<int>(keys.size()), keys.data(), values.data(),
                   property_.get())) {
    throw Error("Check failed: create property");
  }
}

std::size_t Node::count(std::size_t callback) const {
  char** names = nullptr;
  call(*property_, callback, &names);
  std::size_t number = 0;
  while (names[number]) ++number;
  return number;
}

void Node::infer(const std::vector<NDArray>& inputs) const {
  const std::size_t arguments = count(property_at::kListArguments);
  const std::size_t total = inputs.size() + 1;
  if (arguments + count(property_at::kListAuxiliaryStates) != inputs.size()) {
    throw Error("Operator Custom expects another number of inputs");
  }
  // Auxiliary states come after the arguments on entry, and after the output on return.
  std::vector<Shape> shapes;
  std::vector<int*> dims(total, nullptr);
  std::vector<int> ndims(total, -1);
  std::vector<int> dtypes(total, mxnet::kUnknownDType);
  for (const NDArray& input : inputs) shapes.push_back(input.shape());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    dims[i] = shapes[i].data();
    ndims[i] = static_cast<int>(shapes[i].size());
    dtypes[i < arguments ? i : i + 1] = inputs[i].dtype();
  }
  call(*property_, property_at::kInferShape, static_cast<int>(total), ndims.data(), dims.data());
  call(*property_, property_at::kInferType, static_cast<int>(total), dtypes.data());
  std::vector<int> storages(total, mxnet::kUnknownStorage);
  call(*property_, property_at::kInferStorageType, static_cast<int>(total), storages.data());
  for (std::size_t i = 0; i < total; ++i) {
    const NDArray& input = i == arguments ? inputs.front() : inputs[i < arguments ? i : i - 1];
    if (Shape(dims[i], dims[i] + ndims[i]) != input.shape()) throw Error("Shape inconsistent");
    if (dtypes[i] != input.dtype()) throw Error("Type inconsistent");
    if (storages[i] != mxnet::kDense) throw Error("Storage type inconsistent");
  }
}

std::shared_ptr<CustomOp> Node::create_operator(const mxnet::Context& context,
                                                const std::vector<NDArray>& inputs) const {
  infer(inputs);
  const std::size_t arguments = count(property_at::kListArguments);
  const int out_grad = 0;
  std::vector<int> in_data(arguments);
  std::iota(in_data.begin(), in_data.end(), out_grad + 1);
  const int out_data = in_data.back() + 1;
  int number = 0;
  int* dependencies = nullptr;
  call(*property_, property_at::kDeclareBackwardDependency, &out_grad,
       static_cast<const int*>(in_data.data()), &out_data, &number, &dependencies);
  const std::vector<int> backward_inputs(dependencies, dependencies + number);

  const std::string name = (context.dev_type == mxnet::kGPUContext ? "gpu(" : "cpu(") +
                           std::to_string(context.dev_id) + ")";
  auto callbacks = make_list();
  // The library does not look at the inputs here.
  call(*property_, property_at::kCreateOperator, name.c_str(), 0, static_cast<unsigned**>(nullptr),
       static_cast<const int*>(nullptr), static_cast<const int*>(nullptr), callbacks.get());
  return std::make_shared<CustomOp>(std::move(callbacks), context, arguments, backward_inputs);
}

void CustomOp::push(std::size_t callback, std::vector<NDArray> arrays,
                    const std::vector<mxnet::OpReq>& requests, bool is_train,
                    std::vector<VariablePtr> reads, std::vector<VariablePtr> writes) {
  writes.push_back(variable_);
  auto run = [self = shared_from_this(), callback, requests, is_train,
              arrays](const mxnet::OnComplete& on_complete) mutable {
    std::string failure;
    // The callback owns the handles.
    std::vector<void*> handles;
    for (const NDArray& array : arrays) handles.push_back(make_handle(array));
    try {
      const std::vector<int> numbers(requests.begin(), requests.end());
      call(*self->callbacks_, callback, static_cast<int>(handles.size()), handles.data(), kNoTags,
           numbers.data(), static_cast<int>(is_train));
    } catch (const std::exception& error) {
      failure = error.what();
    }
    std::vector<VariablePtr> variables;
    add_variables(arrays, &variables);
    std::unique_lock<std::mutex> lock(holding);
    const auto hold = std::exchange(hold_next, nullptr);
    lock.unlock();
    if (hold) hold(variables);
    // Runs when whatever the callback has pushed on the arrays is over.
    Engine::get().push(
        [failure, variables, on_complete](const mxnet::OnComplete& of_this) {
          std::optional<std::string> message;
          if (!failure.empty()) message = failure;
          for (const auto& variable : variables) {
            const auto left = variable->failure();
            if (left && !message) message = left->take();
          }
          if (message) {
            const Error error(*message);
            complete(on_complete, &error);
          } else {
            complete(on_complete);
          }
          complete(of_this);
        },
        self->context_, variables, {}, mxnet::kNormal, true);
  };
  // A thread for such calls, which a worker of the engine hands them to.
  Engine::get().push(
      [run](const mxnet::OnComplete& on_complete) {
        Engine::get().custom_operators().push([run, on_complete]() mutable { run(on_complete); });
      },
      context_, std::move(reads), std::move(writes), mxnet::kAsync);
}

void CustomOp::forward(const std::vector<NDArray>& inputs, const NDArray& output, bool is_train,
                       bool in_static_graph, mxnet::OpReq request) {
  std::vector<NDArray> arrays;
  std::vector<VariablePtr> reads;
  std::vector<VariablePtr> writes{output.variable()};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (i == num_arguments_) arrays.push_back(output.alias());
    const bool is_written = i >= num_arguments_ && !in_static_graph;
    arrays.push_back(inputs[i].alias());
    (is_written ? writes : reads).push_back(inputs[i].variable());
  }
  push(operator_at::kForward, std::move(arrays), {request}, is_train, std::move(reads),
       std::move(writes));
}

void CustomOp::backward(const NDArray& output_gradient, const std::vector<NDArray>& inputs,
                        const NDArray& output, const std::vector<NDArray>& gradients,
                        const std::vector<mxnet::OpReq>& requests) {
  // All that a backward pass can depend on. What it does not is there all the same, and empty.
  std::vector<NDArray> all{output_gradient};
  const auto auxiliary = inputs.begin() + static_cast<std::ptrdiff_t>(num_arguments_);
  all.insert(all.end(), inputs.begin(), auxiliary);
  all.push_back(output);
  std::vector<NDArray> arrays(all.size());
  std::vector<VariablePtr> reads;
  for (const int needed : backward_inputs_) {
    const auto i = static_cast<std::size_t>(needed);
    arrays[i] = all.at(i).alias();
    reads.push_back(all[i].variable());
  }
  for (const NDArray& gradient : gradients) arrays.push_back(gradient.alias());
  for (auto input = auxiliary; input != inputs.end(); ++input) {
    arrays.push_back(input->alias());
    reads.push_back(input->variable());
  }
  std::vector<VariablePtr> writes;
  add_variables(gradients, &writes);
  push(operator_at::kBackward, std::move(arrays), requests, true, std::move(reads),
       std::move(writes));
}

}  // namespace gluon_syncbn::fake_mxnet

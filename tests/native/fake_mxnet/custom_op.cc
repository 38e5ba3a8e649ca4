#include "fake_mxnet/custom_op.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <queue>
#include <thread>

#include "fake_mxnet/imperative.h"

namespace gluon_syncbn::host {
namespace {

// Tells the frontend what an array is (custom.cc, ForwardEx and BackwardEx).
enum Tag : int { kInput = 0, kOutput = 1, kInputGrad = 2, kOutputGrad = 3, kAuxiliary = 4 };

/// custom-inl.h, CustomOperator.
class CustomOps {
 public:
  static CustomOps& get() {
    static CustomOps ops;
    return ops;
  }

  void add(const std::string& op_type, PropertyCreator creator) {
    const std::lock_guard<std::mutex> lock(mutex_);
    creators_[op_type] = creator;
  }

  PropertyCreator find(const std::string& op_type) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = creators_.find(op_type);
    if (found == creators_.end()) throw Error("Cannot find custom operator " + op_type);
    return found->second;
  }

  /// Threads are added where calls wait and none is free: a call may keep its thread for as long as
  /// it likes.
  void push(std::function<void()> call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls_.push(std::move(call));
    for (; free_ < calls_.size(); ++free_) threads_.emplace_back([this] { work(); });
    wake_.notify_all();
  }

  void stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
      wake_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  /// What a callback answered 0 for belongs to no operation in particular: whichever completes next
  /// gets it (CustomOperator::exception_).
  void keep(std::exception_ptr error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    error_ = std::move(error);
  }
  void rethrow() {
    std::exception_ptr error;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      std::swap(error, error_);
    }
    if (error) std::rethrow_exception(error);
  }

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stop_ || !calls_.empty(); });
      if (calls_.empty()) return;
      auto call = std::move(calls_.front());
      calls_.pop();
      --free_;
      lock.unlock();
      call();
      call = nullptr;
      lock.lock();
      ++free_;
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::string, PropertyCreator> creators_;
  std::queue<std::function<void()>> calls_;
  std::size_t free_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
  std::exception_ptr error_;
};

void check(int answer, const char* what) {
  if (!answer) throw Error(std::string("Check failed: callback ") + what);
}

std::size_t count(const CallbackList& property, int place) {
  char** names = nullptr;
  check(call<ListFunction>(property, place, &names), "list");
  std::size_t size = 0;
  while (names[size]) ++size;
  return size;
}

/// Sets what is unknown and compares what is known (SHAPE_ASSIGN_CHECK, TYPE_ASSIGN_CHECK).
void assign(Shape* known, const int* dims, int ndim) {
  const Shape shape(dims, dims + (ndim > 0 ? ndim : 0));
  if (known->empty()) *known = shape;
  if (*known != shape) throw Error("Shape inconsistent");
}

void assign(int* known, int dtype) {
  if (*known == kNoDType) *known = dtype;
  if (*known != dtype) throw Error("Type inconsistent");
}

/// The arrays of one call. The callback owns the handles; `copies` keep the memory's variables
/// until the operation is over.
struct Arrays {
  std::vector<void*> handles;
  std::vector<int> tags;
  std::vector<NDArray> copies;

  void* copy(const NDArray& array, int device) {
    copies.push_back(array.alias(device));
    return new NDArray(copies.back());
  }
  void add(const NDArray& array, int device, Tag tag) {
    handles.push_back(copy(array, device));
    tags.push_back(tag);
  }
};

/// custom-inl.h, CustomOperator::Push.
void push_call(const std::shared_ptr<CustomState>& state, int place, Arrays arrays,
               const std::vector<OpReq>& requests, const OpContext& context) {
  auto run = [callbacks = state->callbacks(), node = state->node(), place, arrays, requests,
              context]() mutable {
    const Recording recording(false, context.is_train);
    try {
      const std::vector<int> numbers(requests.begin(), requests.end());
      check(call<RunFunction>(*callbacks, place, static_cast<int>(arrays.handles.size()),
                              arrays.handles.data(), arrays.tags.data(), numbers.data(),
                              static_cast<int>(context.is_train)),
            place == operator_at::kForward ? "forward" : "backward");
    } catch (const Error&) {
      CustomOps::get().keep(std::current_exception());
    }
    // Read dependencies on the copies: it runs when whatever the callback pushed on them is over.
    std::vector<Variable*> variables;
    for (const NDArray& copy : arrays.copies) variables.push_back(copy.variable());
    Engine::get().push_sync(
        [copies = arrays.copies, context](const RunContext&) {
          try {
            CustomOps::get().rethrow();
            for (const NDArray& copy : copies) Engine::get().rethrow(copy.variable());
          } catch (const Error& error) {
            context.on_complete(&error);
            return;
          }
          context.on_complete();
        },
        context.run_context.context, std::move(variables), {}, Property::kNoSkip);
  };
  CustomOps::get().push(std::move(run));
}

}  // namespace

void register_custom_op(const std::string& op_type, PropertyCreator creator) {
  CustomOps::get().add(op_type, creator);
}

CustomNode CustomNode::parse(const std::vector<std::pair<std::string, std::string>>& attributes) {
  std::string op_type;
  std::vector<const char*> keys;
  std::vector<const char*> values;
  for (const auto& [key, value] : attributes) {
    if (key == "op_type") {
      op_type = value;
    } else {
      keys.push_back(key.c_str());
      values.push_back(value.c_str());
    }
  }
  if (op_type.empty()) throw Error("Required argument `op_type` is missing.");
  const PropertyCreator creator = CustomOps::get().find(op_type);

  CustomNode node;
  // The deleter is called for whatever the creator has left in the list, also where it has failed.
  node.property.reset(new CallbackList(), [](CallbackList* list) {
    call<DeleteFunction>(*list, property_at::kDelete);
    delete list;
  });
  check(creator(op_type.c_str(), static_cast<int>(keys.size()), keys.data(), values.data(),
                node.property.get()),
        "create property");
  const CallbackList& property = *node.property;
  node.num_arguments = count(property, property_at::kListArguments);
  node.num_outputs = count(property, property_at::kListOutputs);
  node.num_auxiliary = count(property, property_at::kListAuxiliaryStates);

  int number = 0;
  const auto numbers = [&number](std::size_t size) {
    std::vector<int> next(size);
    for (int& value : next) value = number++;
    return next;
  };
  const auto out_grad = numbers(node.num_outputs);
  const auto in_data = numbers(node.num_arguments);
  const auto out_data = numbers(node.num_outputs);
  int size = 0;
  int* dependencies = nullptr;
  check(call<DependencyFunction>(property, property_at::kDeclareBackwardDependency, out_grad.data(),
                                 in_data.data(), out_data.data(), &size, &dependencies),
        "declare backward dependency");
  node.backward_inputs.assign(dependencies, dependencies + size);
  return node;
}

void CustomNode::infer_shapes(std::vector<Shape>* inputs, std::vector<Shape>* outputs) const {
  const std::size_t total = num_inputs() + num_outputs;
  std::vector<Shape> buffers = *inputs;
  std::vector<int*> shapes(total, nullptr);
  std::vector<int> ndims(total, 0);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    shapes[i] = buffers[i].data();
    // An empty shape is unknown, which is -1 dimensions in the callback.
    ndims[i] = buffers[i].empty() ? -1 : static_cast<int>(buffers[i].size());
  }
  check(call<InferShapeFunction>(*property, property_at::kInferShape, static_cast<int>(total),
                                 ndims.data(), shapes.data()),
        "infer shape");
  // Auxiliary states come behind the arguments on entry, and behind the outputs on return.
  for (std::size_t i = 0; i < total; ++i) {
    const bool is_output = i >= num_arguments && i < num_arguments + num_outputs;
    const std::size_t input = i < num_arguments ? i : i - num_outputs;
    assign(is_output ? &(*outputs)[i - num_arguments] : &(*inputs)[input], shapes[i], ndims[i]);
  }
}

void CustomNode::infer_types(std::vector<int>* inputs, std::vector<int>* outputs) const {
  const auto arguments = static_cast<std::ptrdiff_t>(num_arguments);
  std::vector<int> types(inputs->begin(), inputs->begin() + arguments);
  types.insert(types.end(), outputs->begin(), outputs->end());
  types.insert(types.end(), inputs->begin() + arguments, inputs->end());
  check(call<InferTypeFunction>(*property, property_at::kInferType, static_cast<int>(types.size()),
                                types.data()),
        "infer type");
  for (std::size_t i = 0; i < types.size(); ++i) {
    const bool is_output = i >= num_arguments && i < num_arguments + num_outputs;
    const std::size_t input = i < num_arguments ? i : i - num_outputs;
    assign(is_output ? &(*outputs)[i - num_arguments] : &(*inputs)[input], types[i]);
  }
}

// custom.cc, CreateState.
CustomState::CustomState(const CustomNode& node, const Context& context,
                         const std::vector<Shape>& shapes, const std::vector<int>& dtypes)
    : node_{nullptr, node.num_arguments, node.num_outputs, node.num_auxiliary,
            node.backward_inputs} {
  std::vector<std::vector<unsigned>> buffers;
  for (const Shape& shape : shapes) buffers.emplace_back(shape.begin(), shape.end());
  std::vector<unsigned*> pointers;
  std::vector<int> ndims;
  for (auto& buffer : buffers) {
    pointers.push_back(buffer.data());
    ndims.push_back(static_cast<int>(buffer.size()));
  }
  auto list = std::make_unique<CallbackList>();
  check(call<CreateFunction>(*node.property, property_at::kCreateOperator, context.name().c_str(),
                             static_cast<int>(pointers.size()), pointers.data(), ndims.data(),
                             dtypes.data(), list.get()),
        "create operator");
  callbacks_.reset(list.release(), [](CallbackList* callbacks) {
    call<DeleteFunction>(*callbacks, operator_at::kDelete);
    delete callbacks;
  });
  variable_ = Engine::get().new_variable();
}

// op_attr_types.h, OpStatePtr: the variable outlives the state, until the last operation is over.
CustomState::~CustomState() {
  if (variable_) Engine::get().delete_variable([] {}, {}, variable_);
}

void run_forward(const std::shared_ptr<CustomState>& state, const OpContext& context,
                 const std::vector<NDArray>& inputs, const std::vector<OpReq>& requests,
                 const std::vector<NDArray>& outputs) {
  const CustomNode& node = state->node();
  const int device = context.run_context.context.dev_id;
  Arrays arrays;
  for (std::size_t i = 0; i < node.num_arguments; ++i) arrays.add(inputs[i], device, kInput);
  for (const NDArray& output : outputs) arrays.add(output, device, kOutput);
  for (std::size_t i = 0; i < node.num_auxiliary; ++i) {
    arrays.add(inputs[node.num_arguments + i], device, kAuxiliary);
  }
  push_call(state, operator_at::kForward, std::move(arrays), requests, context);
}

void run_backward(const std::shared_ptr<CustomState>& state, const OpContext& context,
                  const std::vector<NDArray>& inputs, const std::vector<OpReq>& requests,
                  const std::vector<NDArray>& outputs) {
  const CustomNode& node = state->node();
  const int device = context.run_context.context.dev_id;
  Arrays arrays;
  arrays.tags.insert(arrays.tags.end(), node.num_outputs, kOutputGrad);
  arrays.tags.insert(arrays.tags.end(), node.num_arguments, kInput);
  arrays.tags.insert(arrays.tags.end(), node.num_outputs, kOutput);
  arrays.handles.assign(arrays.tags.size(), nullptr);
  for (std::size_t i = 0; i < node.backward_inputs.size(); ++i) {
    const auto place = static_cast<std::size_t>(node.backward_inputs[i]);
    arrays.handles[place] = arrays.copy(inputs[i], device);
  }
  // What the operator does not depend on is there all the same, and empty.
  for (void*& handle : arrays.handles) {
    if (!handle) handle = new NDArray();
  }
  for (const NDArray& output : outputs) arrays.add(output, device, kInputGrad);
  for (std::size_t i = inputs.size() - node.num_auxiliary; i < inputs.size(); ++i) {
    arrays.add(inputs[i], device, kAuxiliary);
  }
  push_call(state, operator_at::kBackward, std::move(arrays), requests, context);
}

void stop_custom_ops() { CustomOps::get().stop(); }

}  // namespace gluon_syncbn::host

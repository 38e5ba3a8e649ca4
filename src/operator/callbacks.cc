#include "operator/callbacks.h"

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mxnet/repairs/unknown_shapes.h"
#include "operator/property.h"

namespace gluon_syncbn::op {

using namespace mxnet;

namespace {

// MXNet calls every callback except forward, backward and the deleters inside a C function. The C
// function turns a std::exception into an MXNetError.
constexpr int kSuccess = 1;
constexpr int kFailure = 0;

template <class Function>
Callback erase_type(Function* function) {
  return reinterpret_cast<Callback>(function);
}

/// An object that MXNet owns through a list of callbacks, each of which gets the Owned as its
/// context. MXNet copies the list, but not the two arrays in it. It uses these arrays until it has
/// called the deleter, which is the first callback.
template <class T, std::size_t NumCallbacks>
struct Owned {
  std::shared_ptr<T> object;
  std::array<void*, NumCallbacks> contexts;

  static void publish(std::shared_ptr<T> object, std::array<Callback, NumCallbacks>& callbacks,
                      CallbackList* out) {
    auto state = std::make_unique<Owned>();
    state->object = std::move(object);
    state->contexts.fill(state.get());
    *out = {static_cast<int>(NumCallbacks), callbacks.data(), state->contexts.data()};
    state.release();
  }

  static T& get(void* state) { return *static_cast<Owned*>(state)->object; }

  static int destroy(void* state) {
    std::unique_ptr<Owned>(static_cast<Owned*>(state));
    return kSuccess;
  }
};

using OwnedProperty = Owned<Property, 10>;
using OwnedOperator = Owned<Operator, 3>;

Positions positions_of(void* state) { return OwnedProperty::get(state).positions(); }

/// Whether `number` counts all arguments, the output and all auxiliary states.
bool is_number_of_all(int number, const Positions& positions) {
  return static_cast<std::size_t>(number) == positions.arguments() + 1 + positions.states();
}

/// MXNet copies the list before it calls again on this thread, and never writes to it.
int list(char*** names, std::vector<const char*> given) {
  thread_local std::vector<const char*> values;
  values = std::move(given);
  values.push_back(nullptr);
  *names = const_cast<char**>(values.data());
  return kSuccess;
}

/// The names of `number` arrays of forward from `first` on.
std::vector<const char*> names_of(void* state, std::size_t first, std::size_t number) {
  const auto arrays = positions_of(state).arrays();
  std::vector<const char*> names;
  for (std::size_t i = first; i < first + number; ++i) names.push_back(arrays[i].name);
  return names;
}

int list_arguments(char*** names, void* state) {
  return list(names, names_of(state, 0, positions_of(state).arguments()));
}

int list_outputs(char*** names, void*) { return list(names, {"output"}); }

int list_auxiliary_states(char*** names, void* state) {
  const Positions positions = positions_of(state);
  return list(names, names_of(state, positions.arguments() + 1, positions.states()));
}

/// How many inputs a node of the graph has. MXNet does not check this number for the nodes of
/// files, and leaves null where an input is missing (InferShape in
/// mxnet/src/operator/custom/custom.cc). Only one input too many has room in the array.
std::size_t number_of_inputs(int num_tensors, int* const* shapes) {
  auto number = static_cast<std::size_t>(num_tensors);
  while (number > 0 && !shapes[number - 1]) --number;
  return number;
}

int infer_shape(int num_tensors, int* ndims, int** shapes, void* state) {
  const Positions positions = positions_of(state);
  if (!is_number_of_all(num_tensors, positions)) return kFailure;
  // Every input has null as long as MXNet knows no shape.
  if (shapes[0]) OwnedProperty::get(state).require_inputs(number_of_inputs(num_tensors, shapes));
  // On entry the auxiliary states follow the arguments; on return the output stands between them.
  std::vector<std::optional<Shape>> given(static_cast<std::size_t>(num_tensors));
  for (std::size_t i = 0; i + 1 < given.size(); ++i) {
    if (ndims[i] < 0) continue;
    given[i < positions.arguments() ? i : i + 1].emplace(shapes[i], shapes[i] + ndims[i]);
  }
  thread_local Property::Shapes inferred;
  inferred = OwnedProperty::get(state).infer_shapes(given);
  const auto arrays = positions.arrays();
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    Shape& shape = inferred.of(arrays[i].role);
    ndims[i] = static_cast<int>(shape.size());
    shapes[i] = shape.data();
  }
  return kSuccess;
}

int infer_dtype(int num_tensors, int* dtypes, void* state) {
  const Positions positions = positions_of(state);
  if (!is_number_of_all(num_tensors, positions)) return kFailure;
  const auto inferred =
      OwnedProperty::get(state).infer_dtypes(std::vector<int>(dtypes, dtypes + num_tensors));
  const auto arrays = positions.arrays();
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const MXDType dtype = inferred.of(arrays[i].role);
    if (dtype != kUnknownDType) dtypes[i] = dtype;
  }
  return kSuccess;
}

// Without the next two callbacks MXNet refuses sparse arrays itself, and does not name the layer.

int infer_storage(int num_tensors, int* storages, void* state) {
  const Positions positions = positions_of(state);
  if (!is_number_of_all(num_tensors, positions)) return kFailure;
  const auto arrays = positions.arrays();
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    OwnedProperty::get(state).require_dense(arrays[i].name, storages[i]);
    storages[i] = kDense;
  }
  return kSuccess;
}

int infer_storage_backward(int num_tensors, int* storages, int* tags, void* state) {
  // The numbers of MXNet's tags. The forward pass has checked all other arrays.
  constexpr int kInputGradient = 2;
  constexpr int kOutputGradient = 3;
  const Property& property = OwnedProperty::get(state);
  const auto arrays = property.positions().arrays();
  std::size_t gradients = 0;
  for (int i = 0; i < num_tensors; ++i) {
    if (tags[i] == kOutputGradient) {
      property.require_dense("the gradient of the output", storages[i]);
    } else if (tags[i] == kInputGradient) {
      property.require_dense(std::string("the gradient of ") + arrays[gradients++].name,
                             storages[i]);
    }
    storages[i] = kDense;
  }
  return kSuccess;
}

int declare_backward_dependency(const int* out_grad, const int* in_data, const int* out_data,
                                int* num_dependencies, int** dependencies, void* state) {
  thread_local std::vector<int> values;
  const BackwardReads reads = OwnedProperty::get(state).backward_reads();
  values = {out_grad[0], in_data[kGamma]};
  if (reads.data) values.push_back(in_data[kData]);
  if (reads.beta) values.push_back(in_data[kBeta]);
  if (reads.output) values.push_back(out_data[0]);
  *num_dependencies = static_cast<int>(values.size());
  *dependencies = values.data();
  return kSuccess;
}

std::vector<NDArray> own(int size, void** handles) {
  return std::vector<NDArray>(handles, handles + size);
}

/// Runs `body`. MXNet catches its exception as a dmlc::Error only. Passes leave their errors to the
/// operation that they push, except with NaiveEngine.
template <class Body>
int run(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    throw dmlc::Error(error.what());
  }
  return kSuccess;
}

int forward(int size, void** handles, int* /*tags*/, const int* requests, int is_train,
            void* state) {
  return run([&] {
    auto arrays = own(size, handles);
    OwnedOperator::get(state).forward(std::move(arrays), static_cast<OpReq>(requests[0]),
                                      is_train != 0);
  });
}

int backward(int size, void** handles, int* /*tags*/, const int* requests, int /*is_train*/,
             void* state) {
  return run([&] {
    auto arrays = own(size, handles);
    OwnedOperator::get(state).backward(std::move(arrays), requests);
  });
}

int create_operator(const char* context, int /*num_inputs*/, unsigned** /*shapes*/,
                    const int* /*ndims*/, const int* /*dtypes*/, CallbackList* out, void* state) {
  // In the order of MXNet's CustomOpCallbacks.
  static std::array<Callback, 3> callbacks{erase_type(&OwnedOperator::destroy),
                                           erase_type(&forward), erase_type(&backward)};
  return run([&] {
    OwnedOperator::publish(OwnedProperty::get(state).create_operator(context), callbacks, out);
  });
}

std::atomic<FirstUse> the_first_use{nullptr};
std::atomic<bool> was_used{false};

/// Changes what the operator needs to be different in MXNet. Programs without the operator keep
/// MXNet as it is.
void begin_at_first_use() {
  if (was_used.exchange(true)) return;
  accept_unknown_shapes();
  if (const FirstUse first_use = the_first_use) first_use();
}

int do_nothing(void*) { return kSuccess; }

int create_property(const char* /*op_type*/, int num_attributes, const char** names,
                    const char** values, CallbackList* out) {
  // In the order of MXNet's CustomOpPropCallbacks.
  static std::array<Callback, 10> callbacks{erase_type(&OwnedProperty::destroy),
                                            erase_type(&list_arguments),
                                            erase_type(&list_outputs),
                                            erase_type(&list_auxiliary_states),
                                            erase_type(&infer_shape),
                                            erase_type(&declare_backward_dependency),
                                            erase_type(&create_operator),
                                            erase_type(&infer_dtype),
                                            erase_type(&infer_storage),
                                            erase_type(&infer_storage_backward)};
  // After an exception MXNet still calls the deleter of this list.
  static std::array<Callback, 1> only_deleter{erase_type(&do_nothing)};
  static std::array<void*, 1> no_context{nullptr};
  *out = {static_cast<int>(only_deleter.size()), only_deleter.data(), no_context.data()};

  begin_at_first_use();
  std::vector<std::pair<std::string, std::string>> attributes;
  for (int i = 0; i < num_attributes; ++i) attributes.emplace_back(names[i], values[i]);
  OwnedProperty::publish(std::make_shared<Property>(Attributes::parse(attributes)), callbacks, out);
  return kSuccess;
}

}  // namespace

void register_operator(FirstUse first_use) {
  the_first_use = first_use;
  check(api().CustomOpRegister(kOpType, &create_property), "MXCustomOpRegister");
}

}  // namespace gluon_syncbn::op

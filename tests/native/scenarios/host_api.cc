#include "scenarios/host_api.h"

#include <dlfcn.h>

#include <future>
#include <memory>

#include "scenarios/dtypes.h"

namespace gluon_syncbn::scenarios {
namespace {

void* open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW);
  if (!library) throw Failure(std::string("cannot load ") + path + ": " + dlerror());
  return library;
}

template <class Function>
void find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (!*function) throw Failure(std::string("no function ") + name);
}

/// The host waits by an operation on cpu(0), which is over a little after the waiter has gone on.
/// An operation that comes behind it there ends later.
void settle() {
  const auto settled = std::make_shared<std::promise<void>>();
  push({host::kCPU, 0}, Property::kNormal, {}, {}, [settled](const OnComplete& on_complete) {
    settled->set_value();
    on_complete();
  });
  settled->get_future().wait();
}

std::vector<void*> handles(const std::vector<const Array*>& arrays) {
  std::vector<void*> all;
  for (const Array* array : arrays) all.push_back(array->handle());
  return all;
}

}  // namespace

Libraries& Libraries::get() {
  static Libraries libraries{};
  return libraries;
}

void Libraries::load(const std::string& host_path, const std::string& recorder_path,
                     const std::string& adapter_path) {
  void* library = open(host_path);
  find(library, "MXGetLastError", &host.get_last_error);
  find(library, "MXEnginePushAsyncND", &host.push);
  find(library, "MXNDArrayCreateEx64", &host.create);
  find(library, "MXNDArrayFree", &host.free);
  find(library, "MXNDArrayGetShapeEx", &host.get_shape);
  find(library, "MXNDArrayGetData", &host.get_data);
  find(library, "MXNDArraySyncCopyFromCPU", &host.copy_from);
  find(library, "MXNDArraySyncCopyToCPU", &host.copy_to);
  find(library, "MXNDArrayWaitToRead", &host.wait_to_read);
  find(library, "MXNDArrayWaitAll", &host.wait_all);
  find(library, "NNGetOpHandle", &host.get_op);
  find(library, "MXImperativeInvoke", &host.invoke);
  find(library, "MXAutogradSetIsRecording", &host.set_recording);
  find(library, "MXAutogradSetIsTraining", &host.set_training);
  find(library, "MXAutogradMarkVariables", &host.mark);
  find(library, "MXAutogradBackwardEx", &host.backward);
  find(library, "MXNotifyShutdown", &host.notify_shutdown);
  check(host.get_op("Custom", &custom_op));

  void* between = open(recorder_path);
  find(between, "recorder_open", &recorder.open);
  find(between, "recorder_name_thread", &recorder.name_thread);
  find(between, "recorder_held", &recorder.held);
  find(between, "recorder_take", &recorder.take);
  if (!recorder.open(library)) throw Failure("the recorder misses a function of the host");

  void* library_under_test = open(adapter_path);
  find(library_under_test, "gluon_syncbn_register", &adapter.do_register);
  find(library_under_test, "gluon_syncbn_set_timeout", &adapter.set_timeout);
  find(library_under_test, "gluon_syncbn_retire", &adapter.retire);
  find(library_under_test, "gluon_syncbn_hold", &adapter.hold);
  find(library_under_test, "gluon_syncbn_release", &adapter.release);
  find(library_under_test, "gluon_syncbn_is_ready", &adapter.is_ready);
  find(library_under_test, "gluon_syncbn_num_keys", &adapter.num_keys);
  find(library_under_test, "gluon_syncbn_add_process_set", &adapter.add_process_set);
  // The adapter takes the recorder for libmxnet.
  if (const char* error = adapter.do_register(recorder_path.c_str(), nullptr)) throw Failure(error);
}

void check(int status) {
  if (status != 0) throw HostError(host().get_last_error());
}

Array::Array(const Shape& shape, int dtype, const Context& context) : shape_(shape), dtype_(dtype) {
  const std::vector<std::int64_t> dims(shape.begin(), shape.end());
  check(host().create(dims.data(), static_cast<int>(dims.size()), context.dev_type, context.dev_id,
                      0, dtype, &handle_));
}

Array::~Array() {
  if (handle_) host().free(handle_);
}

std::size_t Array::size() const {
  std::size_t size = 1;
  for (const int dim : shape_) size *= static_cast<std::size_t>(dim);
  return size;
}

void Array::write(const Values& values) const {
  const auto bytes = encode(values, dtype_);
  check(host().copy_from(handle_, bytes.data(), values.size()));
  settle();
}

Values Array::read() const { return decode(bytes(), dtype_); }

std::vector<unsigned char> Array::bytes() const {
  std::vector<unsigned char> bytes(size() * host::size_of(dtype_));
  check(host().copy_to(handle_, bytes.data(), size()));
  return bytes;
}

void push(const Context& context, Property property, const std::vector<const Array*>& reads,
          const std::vector<const Array*>& writes, std::function<void(OnComplete)> operation) {
  push_handles(context, property, handles(reads), handles(writes), std::move(operation));
}

void push_handles(const Context& context, Property property, std::vector<void*> reads,
                  std::vector<void*> writes, std::function<void(OnComplete)> operation) {
  using Operation = std::function<void(OnComplete)>;
  const auto run = [](void* /*run_context*/, void* on_complete, void* pushed) {
    (*static_cast<Operation*>(pushed))(*static_cast<OnComplete*>(on_complete));
  };
  const auto destroy = [](void* pushed) {
    std::unique_ptr<Operation>(static_cast<Operation*>(pushed));
  };
  auto owned = std::make_unique<Operation>(std::move(operation));
  check(host().push(run, owned.release(), destroy, &context, reads.data(),
                    static_cast<int>(reads.size()), writes.data(), static_cast<int>(writes.size()),
                    &property, 0, "Scenario", false));
}

void fail(const Array& array, const Context& context, const std::string& message) {
  push(context, Property::kNormal, {}, {&array}, [message](const OnComplete& on_complete) {
    const host::Error error(message);
    on_complete(&error);
  });
}

Recorded::Recorded(bool recording, bool training) {
  check(host().set_recording(recording, &recording_));
  check(host().set_training(training, &training_));
}

Recorded::~Recorded() {
  int before = 0;
  host().set_recording(recording_, &before);
  host().set_training(training_, &before);
}

void mark_variable(const Array& variable, OpReq request, const Array& gradient) {
  void* handle = variable.handle();
  void* gradient_handle = gradient.handle();
  auto number = static_cast<std::uint32_t>(request);
  check(host().mark(1, &handle, &number, &gradient_handle));
}

void backward(const std::vector<const Array*>& outputs,
              const std::vector<const Array*>& output_gradients, const Backward& options) {
  auto from = handles(outputs);
  auto given = handles(output_gradients);
  check(host().backward(static_cast<std::uint32_t>(from.size()), from.data(), given.data(), 0,
                        nullptr, options.retain_graph, 0, options.is_train, nullptr, nullptr));
}

}  // namespace gluon_syncbn::scenarios

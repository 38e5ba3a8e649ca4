// A layer between a host and the adapter. It has the functions that the adapter looks up in
// libmxnet, hands every call on to the host, and every callback on to the adapter, and writes down
// what was called, with what, and on whose thread. Put before MXNet and before the stand-in it
// gives two records that can be compared.

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "fake_mxnet/types.h"

#define RECORDER_EXPORT extern "C" __attribute__((visibility("default")))

namespace gluon_syncbn::host {
namespace {

using AsyncFunction = void (*)(void*, void*, void*);
using Deleter = void (*)(void*);

/// The host behind.
struct Next {
  const char* (*get_last_error)();
  int (*register_op)(const char*, PropertyCreator);
  int (*push)(AsyncFunction, void*, Deleter, void*, void**, int, void**, int, void*, int,
              const char*, bool);
  int (*create)(const std::int64_t*, int, int, int, int, int, void**);
  int (*wait_to_read)(void*);
  int (*free)(void*);
  int (*get_data)(void*, void**);
  int (*get_dtype)(void*, int*);
  int (*get_shape)(void*, int*, const int**);
  int (*get_context)(void*, int*, int*);
};
Next next;

thread_local std::string the_role = "a thread of the host";
thread_local std::string the_operator;  // whose forward or backward callback runs

class Record {
 public:
  static Record& get() {
    static Record record;
    return record;
  }

  /// Events of one subject are in order; subjects are not, because threads run as they like.
  void write(const std::string& subject, const std::string& event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    events_[subject].push_back(event);
  }

  void count(const std::string& event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++counts_[event];
  }

  /// Something that must be given back: an array, an operator, an operation.
  void hold(int number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    held_ += number;
  }

  long held() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return held_;
  }

  /// "name #0", "name #1", ... in the order of calls.
  std::string number(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return name + " #" + std::to_string(numbers_[name]++);
  }

  std::string take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::ostringstream text;
    // Which of several subjects of a name is which depends on threads: without their numbers, in
    // the order of what happened to them.
    std::map<std::string, std::multiset<std::vector<std::string>>> by_name;
    for (const auto& [subject, events] : events_) {
      by_name[subject.substr(0, subject.rfind(" #"))].insert(events);
    }
    for (const auto& [name, subjects] : by_name) {
      for (const auto& events : subjects) {
        text << name << "\n";
        for (const auto& event : events) text << "  " << event << "\n";
      }
    }
    for (const auto& [event, number] : counts_) text << number << " x " << event << "\n";
    events_.clear();
    counts_.clear();
    numbers_.clear();
    return text.str();
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<std::string>> events_;
  std::map<std::string, int> counts_;
  std::map<std::string, int> numbers_;
  long held_ = 0;
};

template <class Numbers>
std::string join(const Numbers* numbers, int size) {
  std::string text;
  for (int i = 0; i < size; ++i) text += (i ? "," : "") + std::to_string(numbers[i]);
  return "(" + text + ")";
}

std::string describe(void* array) {
  int ndim = 0;
  const int* shape = nullptr;
  int dtype = kNoDType;
  Context context;
  next.get_shape(array, &ndim, &shape);
  const std::string dims = join(shape, ndim);
  next.get_dtype(array, &dtype);
  if (dtype == kNoDType) return "nothing";
  next.get_context(array, &context.dev_type, &context.dev_id);
  return dims + " of dtype " + std::to_string(dtype) + " on " + context.name();
}

std::string on_thread() { return ", on " + the_role; }

/// Callbacks of the adapter with what they are called for.
struct Wrapped {
  std::string subject;
  CallbackList inner;
  std::vector<void (*)()> callbacks;
  std::vector<void*> contexts;

  static Wrapped& of(void* state) { return *static_cast<Wrapped*>(state); }

  /// Puts a list in the place of the adapter's whose callbacks get the Wrapped as their context.
  static void replace(const std::string& subject, CallbackList* list,
                      const std::vector<void (*)()>& callbacks) {
    auto wrapped = std::make_unique<Wrapped>();
    wrapped->subject = subject;
    wrapped->inner = *list;
    wrapped->callbacks = callbacks;
    wrapped->callbacks.resize(static_cast<std::size_t>(list->num_callbacks));
    wrapped->contexts.assign(wrapped->callbacks.size(), wrapped.get());
    list->callbacks = wrapped->callbacks.data();
    list->contexts = wrapped->contexts.data();
    wrapped.release();
    Record::get().hold(1);
  }

  static int destroy(void* state) {
    const std::unique_ptr<Wrapped> wrapped(static_cast<Wrapped*>(state));
    const int answer = call<DeleteFunction>(wrapped->inner, property_at::kDelete);
    Record::get().write(wrapped->subject, "deleted");
    Record::get().hold(-1);
    return answer;
  }
};

template <class Function>
void (*erase_type(Function* function))() {
  return reinterpret_cast<void (*)()>(function);
}

int run_operator(const char* name, int place, int size, void** arrays, int* tags,
                 const int* requests, int is_train, void* state) {
  Wrapped& op = Wrapped::of(state);
  std::ostringstream event;
  int written = 0;
  for (int i = 0; i < size; ++i) written += tags[i] == (place == operator_at::kForward ? 1 : 2);
  event << name << " tags" << join(tags, size) << " requests" << join(requests, written)
        << " is_train " << is_train;
  for (int i = 0; i < size; ++i) event << "; " << describe(arrays[i]);
  Record::get().write(op.subject, event.str() + on_thread());
  Record::get().hold(size);
  the_operator = op.subject;
  const int answer = call<RunFunction>(op.inner, place, size, arrays, tags, requests, is_train);
  the_operator.clear();
  return answer;
}

int forward(int size, void** arrays, int* tags, const int* requests, int is_train, void* state) {
  return run_operator("forward", operator_at::kForward, size, arrays, tags, requests, is_train,
                      state);
}

int backward(int size, void** arrays, int* tags, const int* requests, int is_train, void* state) {
  return run_operator("backward", operator_at::kBackward, size, arrays, tags, requests, is_train,
                      state);
}

template <int place>
int list(char*** names, void* state) {
  return call<ListFunction>(Wrapped::of(state).inner, place, names);
}

int infer_shape(int num_tensors, int* ndims, int** shapes, void* state) {
  Wrapped& property = Wrapped::of(state);
  std::string event = "infer shapes of " + std::to_string(num_tensors) + ":";
  for (int i = 0; i < num_tensors; ++i) event += " " + join(shapes[i], ndims[i]);
  Record::get().write(property.subject, event + on_thread());
  return call<InferShapeFunction>(property.inner, property_at::kInferShape, num_tensors, ndims,
                                  shapes);
}

int infer_type(int num_tensors, int* dtypes, void* state) {
  Wrapped& property = Wrapped::of(state);
  Record::get().write(property.subject, "infer types " + join(dtypes, num_tensors) + on_thread());
  return call<InferTypeFunction>(property.inner, property_at::kInferType, num_tensors, dtypes);
}

int declare_dependency(const int* out_grad, const int* in_data, const int* out_data,
                       int* num_dependencies, int** dependencies, void* state) {
  Wrapped& property = Wrapped::of(state);
  Record::get().write(property.subject, "declare backward dependency of " + join(out_grad, 1) +
                                            join(in_data, 3) + join(out_data, 1) + on_thread());
  return call<DependencyFunction>(property.inner, property_at::kDeclareBackwardDependency, out_grad,
                                  in_data, out_data, num_dependencies, dependencies);
}

int create_operator(const char* context, int num_inputs, unsigned** shapes, const int* ndims,
                    const int* dtypes, CallbackList* out, void* state) {
  Wrapped& property = Wrapped::of(state);
  std::ostringstream event;
  event << "create operator on " << context << " for dtypes " << join(dtypes, num_inputs);
  for (int i = 0; i < num_inputs; ++i) event << " " << join(shapes[i], ndims[i]);
  Record::get().write(property.subject, event.str() + on_thread());
  const int answer = call<CreateFunction>(property.inner, property_at::kCreateOperator, context,
                                          num_inputs, shapes, ndims, dtypes, out);
  const std::string key = property.subject.substr(std::strlen("property "));
  const std::string name = "operator " + key.substr(0, key.rfind(' ')) + " on " + context;
  Wrapped::replace(Record::get().number(name), out,
                   {erase_type(&Wrapped::destroy), erase_type(&forward), erase_type(&backward)});
  return answer;
}

PropertyCreator adapter_creator = nullptr;

int create_property(const char* op_type, int num_attributes, const char** names,
                    const char** values, CallbackList* out) {
  std::string key = "-";
  for (int i = 0; i < num_attributes; ++i) {
    if (std::strcmp(names[i], "key") == 0) key = values[i];
  }
  const std::string subject = Record::get().number("property " + key);
  Record::get().write(subject, "create property" + on_thread());
  const auto replace = [&] {
    Wrapped::replace(
        subject, out,
        {erase_type(&Wrapped::destroy), erase_type(&list<property_at::kListArguments>),
         erase_type(&list<property_at::kListOutputs>),
         erase_type(&list<property_at::kListAuxiliaryStates>), erase_type(&infer_shape),
         erase_type(&declare_dependency), erase_type(&create_operator), erase_type(&infer_type)});
  };
  try {
    const int answer = adapter_creator(op_type, num_attributes, names, values, out);
    replace();
    return answer;
  } catch (...) {
    replace();
    throw;
  }
}

/// An operation that the adapter pushes.
struct Pushed {
  std::string subject;  // empty where no operator is known
  std::string name;
  std::string text;
  Context context;
  std::thread::id pusher;
  AsyncFunction function;
  void* param;
  Deleter deleter;
  OnComplete on_complete;

  void write(const std::string& event) const {
    if (subject.empty()) {
      Record::get().count(name + ": " + event);
    } else {
      Record::get().write(subject, name + ": " + event);
    }
  }
};

void complete(void* /*engine*/, void* operation, const void* error) {
  const auto& pushed = *static_cast<Pushed*>(operation);
  pushed.write(error ? "complete with an error" : "complete");
  const OnComplete on_complete = pushed.on_complete;
  on_complete.callback(on_complete.engine, on_complete.operation, error);  // deletes `pushed`
}

void run_pushed(void* run_context, void* on_complete, void* operation) {
  auto& pushed = *static_cast<Pushed*>(operation);
  const bool on_own_worker = the_role == "a worker of " + pushed.context.name();
  const bool on_pusher = std::this_thread::get_id() == pushed.pusher;
  pushed.write("run on " + (on_own_worker ? "a worker of its context"
                            : on_pusher   ? "the thread that pushed it"
                                          : the_role));
  pushed.on_complete = *static_cast<OnComplete*>(on_complete);
  OnComplete recorded{&complete, nullptr, operation};
  pushed.function(run_context, &recorded, pushed.param);
}

void delete_pushed(void* operation) {
  const std::unique_ptr<Pushed> pushed(static_cast<Pushed*>(operation));
  if (pushed->deleter) pushed->deleter(pushed->param);
  Record::get().hold(-1);
}

template <class Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace
}  // namespace gluon_syncbn::host

using namespace gluon_syncbn::host;

RECORDER_EXPORT const char* MXGetLastError() { return next.get_last_error(); }

RECORDER_EXPORT int MXCustomOpRegister(const char* op_type, PropertyCreator creator) {
  adapter_creator = creator;
  return next.register_op(op_type, &create_property);
}

RECORDER_EXPORT int MXEnginePushAsyncND(AsyncFunction function, void* param, Deleter deleter,
                                        void* context, void** const_arrays, int num_const,
                                        void** mutable_arrays, int num_mutable, void* property,
                                        int priority, const char* name, bool wait) {
  auto pushed = std::make_unique<Pushed>();
  pushed->subject = the_operator;
  pushed->name = name;
  pushed->context = *static_cast<const Context*>(context);
  pushed->pusher = std::this_thread::get_id();
  pushed->function = function;
  pushed->param = param;
  pushed->deleter = deleter;
  std::ostringstream event;
  event << "push";
  // Else it depends on who comes first for which devices it is.
  if (!the_operator.empty()) event << " for " << pushed->context.name() << on_thread() << ",";
  event << " property " << (property ? *static_cast<const int*>(property) : 0) << " priority "
        << priority << " reads " << num_const << " writes " << num_mutable << " wait " << wait;
  pushed->write(event.str());
  Record::get().hold(1);
  return next.push(&run_pushed, pushed.release(), &delete_pushed, context, const_arrays, num_const,
                   mutable_arrays, num_mutable, property, priority, name, wait);
}

RECORDER_EXPORT int MXNDArrayCreateEx64(const std::int64_t* shape, int ndim, int dev_type,
                                        int dev_id, int delay_alloc, int dtype, void** out) {
  Record::get().hold(1);
  return next.create(shape, ndim, dev_type, dev_id, delay_alloc, dtype, out);
}

RECORDER_EXPORT int MXNDArrayWaitToRead(void* array) { return next.wait_to_read(array); }

RECORDER_EXPORT int MXNDArrayFree(void* array) {
  Record::get().hold(-1);
  return next.free(array);
}

RECORDER_EXPORT int MXNDArrayGetData(void* array, void** data) {
  return next.get_data(array, data);
}

RECORDER_EXPORT int MXNDArrayGetDType(void* array, int* dtype) {
  return next.get_dtype(array, dtype);
}

RECORDER_EXPORT int MXNDArrayGetShapeEx(void* array, int* ndim, const int** shape) {
  return next.get_shape(array, ndim, shape);
}

RECORDER_EXPORT int MXNDArrayGetContext(void* array, int* dev_type, int* dev_id) {
  return next.get_context(array, dev_type, dev_id);
}

/// Records what goes between the adapter and this host from here on. False where it lacks a
/// function.
RECORDER_EXPORT bool recorder_open(void* host) {
  return find(host, "MXGetLastError", &next.get_last_error) &&
         find(host, "MXCustomOpRegister", &next.register_op) &&
         find(host, "MXEnginePushAsyncND", &next.push) &&
         find(host, "MXNDArrayCreateEx64", &next.create) &&
         find(host, "MXNDArrayWaitToRead", &next.wait_to_read) &&
         find(host, "MXNDArrayFree", &next.free) &&
         find(host, "MXNDArrayGetData", &next.get_data) &&
         find(host, "MXNDArrayGetDType", &next.get_dtype) &&
         find(host, "MXNDArrayGetShapeEx", &next.get_shape) &&
         find(host, "MXNDArrayGetContext", &next.get_context);
}

/// Names the calling thread in the record.
RECORDER_EXPORT void recorder_name_thread(const char* role) { the_role = role; }

/// What the host has given to the adapter, or the adapter to the host, and not got back yet.
RECORDER_EXPORT long recorder_held() { return Record::get().held(); }

/// The record since the last call; valid until the next.
RECORDER_EXPORT const char* recorder_take() {
  static std::string text;
  text = Record::get().take();
  return text.c_str();
}

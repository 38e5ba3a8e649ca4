#ifndef GLUON_SYNCBN_TESTS_NATIVE_SCENARIOS_HOST_API_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SCENARIOS_HOST_API_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fake_mxnet/types.h"

namespace gluon_syncbn::scenarios {

using host::Context;
using host::OnComplete;
using host::OpReq;
using host::Property;
using host::RunContext;
using host::Shape;

using Values = std::vector<double>;

/// What a call into the host reports.
class HostError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A scenario whose outcome is wrong.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The functions of MXNet's C interface that a frontend calls, in whichever library is loaded.
struct HostFunctions {
  const char* (*get_last_error)();
  int (*push)(void (*)(void*, void*, void*), void*, void (*)(void*), const void*, void**, int,
              void**, int, const void*, int, const char*, bool);
  int (*create)(const std::int64_t*, int, int, int, int, int, void**);
  int (*free)(void*);
  int (*get_shape)(void*, int*, const int**);
  int (*get_data)(void*, void**);
  int (*copy_from)(void*, const void*, std::size_t);
  int (*copy_to)(void*, void*, std::size_t);
  int (*wait_to_read)(void*);
  int (*wait_all)();
  int (*get_op)(const char*, void**);
  int (*invoke)(void*, int, void**, int*, void***, int, const char**, const char**);
  int (*set_recording)(int, int*);
  int (*set_training)(int, int*);
  int (*mark)(std::uint32_t, void**, std::uint32_t*, void**);
  int (*backward)(std::uint32_t, void**, void**, std::uint32_t, void**, int, int, int, void***,
                  int**);
  int (*notify_shutdown)();
};

/// The functions of libgluon_syncbn.so that gluon_syncbn/runtime.py calls.
struct AdapterFunctions {
  const char* (*do_register)(const char*, void (*)(int, char*, int));
  void (*set_timeout)(double);
  const char* (*retire)();
  void* (*hold)(void*);
  void (*release)(void*);
  int (*is_ready)(void*);
  std::size_t (*num_keys)();
  void (*add_process_set)(int (*)(void**, void**, const char*, int, int, int), int, int, int,
                          const char*);
};

struct RecorderFunctions {
  bool (*open)(void*);
  void (*name_thread)(const char*);
  long (*held)();
  const char* (*take)();
};

struct Libraries {
  HostFunctions host;
  AdapterFunctions adapter;
  RecorderFunctions recorder;
  void* custom_op = nullptr;  ///< handle of the operator Custom
  int dev_type = host::kCPU;

  static Libraries& get();
  /// Loads all and registers the adapter's operator with the recorder in front of the host.
  void load(const std::string& host, const std::string& recorder, const std::string& adapter);
};

inline HostFunctions& host() { return Libraries::get().host; }
inline AdapterFunctions& adapter() { return Libraries::get().adapter; }

/// Throws HostError where a function of the host has not returned 0.
void check(int status);

/// The context of the scenarios' device `index`.
inline Context device(int index) { return {Libraries::get().dev_type, index}; }

/// An array of the host.
class Array {
 public:
  Array(const Shape& shape, int dtype, const Context& context);
  /// Owns `handle`.
  Array(void* handle, const Shape& shape, int dtype)
      : handle_(handle), shape_(shape), dtype_(dtype) {}
  Array(Array&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)),
        shape_(std::move(other.shape_)),
        dtype_(other.dtype_) {}
  Array& operator=(Array&&) = delete;
  ~Array();

  void* handle() const { return handle_; }
  const Shape& shape() const { return shape_; }
  int dtype() const { return dtype_; }
  std::size_t size() const;

  /// Values that the dtype has not are rounded. Nothing uses the array when it returns.
  void write(const Values& values) const;
  void fill(double value) const { write(Values(size(), value)); }
  /// Both wait, and throw what operations left in the array.
  Values read() const;
  std::vector<unsigned char> bytes() const;

 private:
  void* handle_ = nullptr;
  Shape shape_;
  int dtype_;
};

/// Pushes an operation of the scenario to the host's engine.
void push(const Context& context, Property property, const std::vector<const Array*>& reads,
          const std::vector<const Array*>& writes, std::function<void(OnComplete)> operation);

/// The same with handles of arrays.
void push_handles(const Context& context, Property property, std::vector<void*> reads,
                  std::vector<void*> writes, std::function<void(OnComplete)> operation);

/// An operation that leaves `message` in `array`.
void fail(const Array& array, const Context& context, const std::string& message);

/// Records what the calling thread does, for as long as it lives.
class Recorded {
 public:
  explicit Recorded(bool recording = true, bool training = true);
  ~Recorded();
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

 private:
  int recording_ = 0;
  int training_ = 0;
};

void mark_variable(const Array& variable, OpReq request, const Array& gradient);

struct Backward {
  bool retain_graph = false;
  bool is_train = true;
};
void backward(const std::vector<const Array*>& outputs,
              const std::vector<const Array*>& output_gradients, const Backward& options = {});

}  // namespace gluon_syncbn::scenarios

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SCENARIOS_HOST_API_H_

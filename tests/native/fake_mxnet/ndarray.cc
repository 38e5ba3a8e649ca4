#include "fake_mxnet/ndarray.h"

#include <cstdint>
#include <cstring>
#include <new>

#include "cuda/runtime.h"
#include "support/arrays.h"

namespace gluon_syncbn::fake_mxnet {
namespace {

/// Contexts share GPUs if there are fewer of these, as the library does with
/// GLUON_SYNCBN_SHARE_GPUS.
int gpu_of(const mxnet::Context& context) { return context.dev_id % cuda::device_count(); }

std::shared_ptr<void> allocate(const mxnet::Context& context, std::size_t bytes) {
  if (context.dev_type == mxnet::kCPUContext) {
    return {::operator new(bytes), [](void* data) { ::operator delete(data); }};
  }
  // An array without elements has a place too.
  const auto memory = std::make_shared<cuda::Memory>(cuda::Memory::Place::kDevice, gpu_of(context),
                                                     bytes > 0 ? bytes : 1);
  return {memory, memory->data()};
}

void copy(const mxnet::Context& context, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  if (context.dev_type == mxnet::kCPUContext) {
    std::memcpy(to, from, bytes);
  } else {
    cuda::Stream stream(gpu_of(context));
    stream.copy(to, from, bytes);
    stream.synchronize();
  }
}

/// Calls visit() with a null pointer to the type of the elements.
template <class Visit>
auto with_type(int dtype, const Visit& visit) {
  switch (dtype) {
    case mxnet::kFloat32:
      return visit(static_cast<float*>(nullptr));
    case mxnet::kFloat64:
      return visit(static_cast<double*>(nullptr));
    case mxnet::kFloat16:
      return visit(static_cast<Half*>(nullptr));
    case mxnet::kInt64:
      return visit(static_cast<std::int64_t*>(nullptr));
    default:
      throw Error("no arrays of dtype " + std::to_string(dtype));
  }
}

std::vector<unsigned char> to_bytes(const Values& values, int dtype) {
  return with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    std::vector<unsigned char> bytes(values.size() * sizeof(T));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T element = tests::Type<T>::of(static_cast<double>(values[i]));
      std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
    return bytes;
  });
}

Values to_values(const std::vector<unsigned char>& bytes, int dtype) {
  return with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Values values;
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(T)) {
      T element;
      std::memcpy(&element, bytes.data() + at, sizeof(T));
      values.push_back(tests::Type<T>::value(element));
    }
    return values;
  });
}

std::size_t size_of(int dtype) {
  return with_type(dtype, [](auto* type) { return sizeof(*type); });
}

}  // namespace

NDArray::NDArray(Shape shape, int dtype, const mxnet::Context& context)
    : shape_(std::move(shape)), dtype_(dtype), context_(context) {
  constexpr unsigned char kNaN = 0xff;  // all bits set, in every type of floating point
  const std::vector<unsigned char> bytes(size() * size_of(dtype), kNaN);
  auto memory = allocate(context, bytes.size());
  data_ = memory.get();
  copy(context, data_, bytes.data(), bytes.size());
  variable_ = std::make_shared<Variable>(std::move(memory));
}

NDArray::NDArray(Shape shape, int dtype, const mxnet::Context& context, const Values& values)
    : NDArray(std::move(shape), dtype, context) {
  if (values.size() != size()) throw Error("one value for each element is expected");
  const auto bytes = to_bytes(values, dtype);
  copy(context, data_, bytes.data(), bytes.size());
}

NDArray NDArray::alias() const {
  NDArray other = *this;
  other.variable_ = std::make_shared<Variable>();
  return other;
}

std::size_t NDArray::size() const {
  std::size_t size = 1;
  for (const int dim : shape_) size *= static_cast<std::size_t>(dim);
  return size;
}

Values NDArray::read() const {
  Engine::get().wait_for(variable_);
  std::vector<unsigned char> bytes(size() * size_of(dtype_));
  copy(context_, bytes.data(), data_, bytes.size());
  return to_values(bytes, dtype_);
}

Values rounded(const Values& values, int dtype) {
  return to_values(to_bytes(values, dtype), dtype);
}

}  // namespace gluon_syncbn::fake_mxnet

#include "fake_mxnet/ndarray.h"

#include <cstdint>
#include <cstring>
#include <new>

#include "cuda/gpu.h"
#include "cuda/runtime.h"

namespace gluon_syncbn::fake_mxnet {
namespace {

/// Contexts share GPUs if there are fewer of these, here and in the library.
int gpu_of(const mxnet::Context& context) { return context.dev_id % cuda::device_count(); }
const bool shares = (cuda::Gpu::share(true), true);

std::shared_ptr<void> allocate(const mxnet::Context& context, std::size_t bytes) {
  if (context.dev_type == mxnet::kCPUContext) {
    return {::operator new(bytes), [](void* data) { ::operator delete(data); }};
  }
  // An array without elements has a place too.
  using Place = cuda::Memory::Place;
  const Place place = context.dev_type == mxnet::kGPUContext ? Place::kDevice : Place::kHost;
  const auto memory = std::make_shared<cuda::Memory>(place, gpu_of(context), bytes > 0 ? bytes : 1);
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

std::size_t size_of(int dtype) {
  return dtype == mxnet::kInt64 || dtype == mxnet::kFloat64 ? 8 : 4;
}

}  // namespace

NDArray::NDArray(Shape shape, int dtype, const mxnet::Context& context)
    : shape_(std::move(shape)), dtype_(dtype), context_(context) {
  const std::vector<unsigned char> nans(size() * size_of(dtype), 0xff);
  auto memory = allocate(context, nans.size());
  data_ = memory.get();
  copy(context, data_, nans.data(), nans.size());
  variable_ = std::make_shared<Variable>(std::move(memory));
}

NDArray::NDArray(Shape shape, const mxnet::Context& context, const Values& values)
    : NDArray(std::move(shape), mxnet::kFloat32, context) {
  const std::vector<float> elements(values.begin(), values.end());
  copy(context, data_, elements.data(), elements.size() * sizeof(float));
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
  std::vector<float> elements(size());
  copy(context_, elements.data(), data_, elements.size() * sizeof(float));
  return {elements.begin(), elements.end()};
}

}  // namespace gluon_syncbn::fake_mxnet

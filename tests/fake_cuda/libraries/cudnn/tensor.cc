#include "libraries/cudnn/tensor.h"

#include <algorithm>

using fake_cuda::Handle;
using fake_cuda::kSuccess;
using fake_cuda::Tensor;

namespace fake_cuda {
namespace {

/// Calls `visit` with the place of each element in memory, in the order of the axes.
template <class Visit>
void for_each(const Tensor& tensor, const Visit& visit) {
  const std::int64_t size = tensor.size();
  int at[Tensor::kMostAxes] = {};
  for (std::int64_t i = 0; i < size; ++i) {
    std::int64_t index = 0;
    for (int axis = 0; axis < tensor.axes; ++axis) {
      index += std::int64_t(at[axis]) * tensor.strides[axis];
    }
    visit(i, index);
    for (int axis = tensor.axes - 1; axis >= 0 && ++at[axis] == tensor.shape[axis]; --axis) {
      at[axis] = 0;
    }
  }
}

void set(Tensor* tensor, int type, int axes, const int* shape, const int* strides) {
  if (axes < 2 || axes > Tensor::kMostAxes) die("a tensor with too many axes for this cuDNN");
  tensor->type = type;
  tensor->axes = axes;
  std::copy_n(shape, axes, tensor->shape);
  std::copy_n(strides, axes, tensor->strides);
}

/// In one piece; `channels_last` is cudnnTensorFormat_t.
void set(Tensor* tensor, int type, int axes, const int* shape, int channels_last) {
  if (channels_last > 1) die("a format of tensors that this cuDNN does not have");
  int strides[Tensor::kMostAxes];
  int next = channels_last ? shape[1] : 1;
  for (int axis = axes - 1; axis > 1; --axis) {
    strides[axis] = next;
    next *= shape[axis];
  }
  strides[1] = channels_last ? 1 : next;
  strides[0] = channels_last ? next : next * shape[1];
  set(tensor, type, axes, shape, strides);
}

}  // namespace

std::int64_t Tensor::size() const {
  std::int64_t product = 1;
  for (int axis = 0; axis < axes; ++axis) product *= shape[axis];
  return product;
}

Numbers Array::read() const {
  Numbers numbers(static_cast<std::size_t>(tensor.size()));
  for_each(tensor, [&](std::int64_t i, std::int64_t index) {
    numbers[static_cast<std::size_t>(i)] = values.get(index);
  });
  return numbers;
}

void Array::write(const Numbers& numbers, double alpha, double beta) const {
  for_each(tensor, [&](std::int64_t i, std::int64_t index) {
    const double before = beta == 0 ? 0 : beta * values.get(index);
    values.set(index, alpha * numbers[static_cast<std::size_t>(i)] + before);
  });
}

}  // namespace fake_cuda

extern "C" {

int cudnnCreate(Handle** handle) { return fake_cuda::create(handle); }
int cudnnDestroy(Handle* handle) { return fake_cuda::destroy(handle); }
int cudnnSetStream(Handle* handle, cudaStream_t stream) {
  handle->stream = stream;
  return kSuccess;
}

int cudnnCreateTensorDescriptor(Tensor** tensor) { return fake_cuda::create(tensor); }
int cudnnDestroyTensorDescriptor(Tensor* tensor) { return fake_cuda::destroy(tensor); }
int cudnnCreateFilterDescriptor(Tensor** filter) { return fake_cuda::create(filter); }
int cudnnDestroyFilterDescriptor(Tensor* filter) { return fake_cuda::destroy(filter); }

int cudnnSetTensor4dDescriptor(Tensor* tensor, int format, int type, int n, int c, int h, int w) {
  const int shape[] = {n, c, h, w};
  fake_cuda::set(tensor, type, 4, shape, format);
  return kSuccess;
}
int cudnnSetTensorNdDescriptor(Tensor* tensor, int type, int axes, const int* shape,
                               const int* strides) {
  fake_cuda::set(tensor, type, axes, shape, strides);
  return kSuccess;
}
int cudnnSetFilter4dDescriptor(Tensor* filter, int type, int format, int k, int c, int h, int w) {
  return cudnnSetTensor4dDescriptor(filter, format, type, k, c, h, w);
}
int cudnnSetFilterNdDescriptor(Tensor* filter, int type, int format, int axes, const int* shape) {
  fake_cuda::set(filter, type, axes, shape, format);
  return kSuccess;
}

}  // extern "C"

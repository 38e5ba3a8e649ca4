// Functions of elements.

#include <cmath>
#include <cstddef>

#include "libraries/cudnn/tensor.h"

using fake_cuda::Array;
using fake_cuda::Blend;
using fake_cuda::Handle;
using fake_cuda::kSuccess;
using fake_cuda::Numbers;
using fake_cuda::put;
using fake_cuda::Tensor;

namespace {

/// A cudnnActivationDescriptor_t.
struct Activation {
  enum Mode { kSigmoid, kRelu, kTanh };
  int mode = kRelu;
};

double value(int mode, double x) {
  switch (mode) {
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::kRelu:
      return x > 0 || std::isnan(x) ? x : 0;
    default:
      return std::tanh(x);
  }
}

/// By the value of the function.
double slope(int mode, double y) {
  switch (mode) {
    case Activation::kSigmoid:
      return y * (1 - y);
    case Activation::kRelu:
      return y > 0 ? 1 : 0;
    default:
      return 1 - y * y;
  }
}

}  // namespace

extern "C" {

int cudnnCreateActivationDescriptor(Activation** of) { return fake_cuda::create(of); }
int cudnnDestroyActivationDescriptor(Activation* of) { return fake_cuda::destroy(of); }
int cudnnSetActivationDescriptor(Activation* of, int mode, int, double) {
  if (mode > Activation::kTanh) fake_cuda::die("an activation of cuDNN that is not imitated");
  of->mode = mode;
  return kSuccess;
}

int cudnnActivationForward(Handle* handle, Activation* of, const void* alpha, Tensor* x_tensor,
                           const void* x, const void* beta, Tensor* y_tensor, void* y) {
  const auto work = [mode = of->mode, x = Array(x_tensor, x), y = Array(y_tensor, y),
                     blend = Blend(y_tensor, alpha, beta)] {
    Numbers numbers = x.read();
    for (double& number : numbers) number = value(mode, number);
    y.write(numbers, blend.alpha, blend.beta);
  };
  return put(handle, "cudnnActivationForward", work);
}

int cudnnActivationBackward(Handle* handle, Activation* of, const void* alpha, Tensor* y_tensor,
                            const void* y, Tensor* dy_tensor, const void* dy, Tensor*, const void*,
                            const void* beta, Tensor* dx_tensor, void* dx) {
  const auto work = [mode = of->mode, y = Array(y_tensor, y), dy = Array(dy_tensor, dy),
                     dx = Array(dx_tensor, dx), blend = Blend(dx_tensor, alpha, beta)] {
    Numbers numbers = dy.read();
    const Numbers values = y.read();
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] *= slope(mode, values[i]);
    dx.write(numbers, blend.alpha, blend.beta);
  };
  return put(handle, "cudnnActivationBackward", work);
}

}  // extern "C"

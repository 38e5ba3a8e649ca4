// Maxima and means over windows.

#include <cstddef>
#include <limits>
#include <vector>

#include "libraries/cudnn/window.h"

using fake_cuda::Array;
using fake_cuda::Blend;
using fake_cuda::Handle;
using fake_cuda::kSuccess;
using fake_cuda::Numbers;
using fake_cuda::put;
using fake_cuda::Tensor;
using fake_cuda::Window;

namespace {

/// A cudnnPoolingDescriptor_t.
struct Pooling {
  enum Mode { kMax, kMeanWithPad, kMeanWithoutPad, kMaxDeterministic };
  int mode = kMax;
  Window window;
  int kernel[Window::kMostAxes] = {1, 1, 1};

  bool is_max() const { return mode == kMax || mode == kMaxDeterministic; }
};

/// Calls `visit` with the places of an output and of the inputs in its window.
template <class Visit>
void for_each_window(const Pooling& of, const Tensor& in, const Tensor& out, const Visit& visit) {
  using Places = std::vector<std::size_t>;
  std::vector<Places> windows(static_cast<std::size_t>(out.area()));
  for_each_meeting(of.window, in, of.kernel, out, [&](auto output, auto input, auto) {
    windows[static_cast<std::size_t>(output)].push_back(static_cast<std::size_t>(input));
  });
  const auto images = static_cast<std::size_t>(out.shape[0] * out.shape[1]);
  const auto area = static_cast<std::size_t>(in.area());
  Places places;
  for (std::size_t image = 0; image < images; ++image) {
    for (std::size_t i = 0; i < windows.size(); ++i) {
      places = windows[i];
      for (std::size_t& place : places) place += image * area;
      visit(image * windows.size() + i, places);
    }
  }
}

double divisor(const Pooling& of, std::size_t inputs) {
  if (of.mode == Pooling::kMeanWithoutPad) return static_cast<double>(inputs);
  return double(of.kernel[0]) * of.kernel[1] * of.kernel[2];
}

/// The first greatest of some inputs.
std::size_t place_of_max(const Numbers& input, const std::vector<std::size_t>& places) {
  std::size_t best = places.front();
  for (const std::size_t place : places) {
    if (input[place] > input[best]) best = place;
  }
  return best;
}

}  // namespace

extern "C" {

int cudnnCreatePoolingDescriptor(Pooling** of) { return fake_cuda::create(of); }
int cudnnDestroyPoolingDescriptor(Pooling* of) { return fake_cuda::destroy(of); }
int cudnnSetPoolingNdDescriptor(Pooling* of, int mode, int, int axes, const int* kernel,
                                const int* pad, const int* stride) {
  *of = Pooling();
  of->mode = mode;
  Window::copy(axes, kernel, of->kernel);
  Window::copy(axes, pad, of->window.pad);
  Window::copy(axes, stride, of->window.stride);
  return kSuccess;
}
int cudnnSetPooling2dDescriptor(Pooling* of, int mode, int nan, int h, int w, int pad_h, int pad_w,
                                int stride_h, int stride_w) {
  const int kernel[] = {h, w};
  const int pad[] = {pad_h, pad_w};
  const int stride[] = {stride_h, stride_w};
  return cudnnSetPoolingNdDescriptor(of, mode, nan, 2, kernel, pad, stride);
}

int cudnnPoolingForward(Handle* handle, Pooling* of, const void* alpha, Tensor* x_tensor,
                        const void* x, const void* beta, Tensor* y_tensor, void* y) {
  const auto work = [of = *of, x = Array(x_tensor, x), y = Array(y_tensor, y),
                     blend = Blend(y_tensor, alpha, beta)] {
    const Numbers input = x.read();
    Numbers result(static_cast<std::size_t>(y.tensor.size()));
    for_each_window(of, x.tensor, y.tensor, [&](std::size_t output, const auto& places) {
      if (of.is_max()) {
        result[output] = input[place_of_max(input, places)];
      } else {
        for (const std::size_t place : places) result[output] += input[place];
        result[output] /= divisor(of, places.size());
      }
    });
    y.write(result, blend.alpha, blend.beta);
  };
  return put(handle, "cudnnPoolingForward", work);
}

int cudnnPoolingBackward(Handle* handle, Pooling* of, const void* alpha, Tensor* y_tensor,
                         const void*, Tensor*, const void* dy, Tensor* x_tensor, const void* x,
                         const void* beta, Tensor*, void* dx) {
  const auto work = [of = *of, x = Array(x_tensor, x), dy = Array(y_tensor, dy),
                     dx = Array(x_tensor, dx), blend = Blend(x_tensor, alpha, beta)] {
    const Numbers input = x.read();
    const Numbers gradient = dy.read();
    Numbers sums(input.size());
    for_each_window(of, x.tensor, dy.tensor, [&](std::size_t output, const auto& places) {
      if (of.is_max()) {
        sums[place_of_max(input, places)] += gradient[output];
      } else {
        const double share = gradient[output] / divisor(of, places.size());
        for (const std::size_t place : places) sums[place] += share;
      }
    });
    dx.write(sums, blend.alpha, blend.beta);
  };
  return put(handle, "cudnnPoolingBackward", work);
}

}  // extern "C"

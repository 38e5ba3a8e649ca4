#ifndef GLUON_SYNCBN_TESTS_FAKE_CUDA_LIBRARIES_CUDNN_WINDOW_H_
#define GLUON_SYNCBN_TESTS_FAKE_CUDA_LIBRARIES_CUDNN_WINDOW_H_

#include <algorithm>
#include <cstdint>

#include "die.h"
#include "libraries/cudnn/tensor.h"

namespace fake_cuda {

/// How the windows of a convolution or pooling lie on their input.
struct Window {
  static constexpr int kMostAxes = Tensor::kMostAxes - 2;
  int pad[kMostAxes] = {0, 0, 0};
  int stride[kMostAxes] = {1, 1, 1};
  int dilation[kMostAxes] = {1, 1, 1};

  static void copy(int axes, const int* from, int* to) {
    if (axes > kMostAxes) die("a window with too many axes for this cuDNN");
    std::copy_n(from, axes, to);
  }
};

/// Calls `visit` with the places of an output, an input and a weight that meet, each within one
/// channel of one image, the places of an output one after the other.
template <class Visit>
void for_each_meeting(const Window& window, const Tensor& in, const int* kernel, const Tensor& out,
                      const Visit& visit) {
  constexpr int kAxes = Window::kMostAxes;
  const auto advance = [](int* at, const auto& size) {
    for (int axis = kAxes - 1; axis >= 0; --axis) {
      if (++at[axis] < size(axis)) return true;
      at[axis] = 0;
    }
    return false;
  };
  int o[kAxes] = {};
  std::int64_t output = 0;
  do {
    int k[kAxes] = {};
    std::int64_t weight = 0;
    do {
      std::int64_t input = 0;
      bool is_inside = true;
      for (int axis = 0; axis < kAxes; ++axis) {
        const int x =
            o[axis] * window.stride[axis] - window.pad[axis] + k[axis] * window.dilation[axis];
        is_inside = is_inside && x >= 0 && x < in.space(axis);
        input = input * in.space(axis) + x;
      }
      if (is_inside) visit(output, input, weight);
      ++weight;
    } while (advance(k, [&](int axis) { return kernel[axis]; }));
    ++output;
  } while (advance(o, [&](int axis) { return out.space(axis); }));
}

}  // namespace fake_cuda

#endif  // GLUON_SYNCBN_TESTS_FAKE_CUDA_LIBRARIES_CUDNN_WINDOW_H_

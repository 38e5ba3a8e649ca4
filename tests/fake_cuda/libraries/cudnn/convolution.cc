// Convolutions and their gradients: products of an input and a weight, summed in an output.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "libraries/cudnn/window.h"

using fake_cuda::Array;
using fake_cuda::Blend;
using fake_cuda::for_each_meeting;
using fake_cuda::Handle;
using fake_cuda::kSuccess;
using fake_cuda::Numbers;
using fake_cuda::put;
using fake_cuda::Tensor;
using fake_cuda::Window;

namespace {

/// A cudnnConvolutionDescriptor_t.
struct Convolution {
  Window window;
  int groups = 1;
};

/// A cudnnConvolution...AlgoPerf_t.
struct Algorithm {
  int number;
  int status;
  float milliseconds;
  std::size_t workspace;
  int is_deterministic;
  int math;
  int reserved[3];
};

std::size_t number_of(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Calls `add` with the places of each product: of its output, its input and its weight.
template <class Add>
void for_each_product(const Convolution& of, const Tensor& in, const Tensor& filter,
                      const Tensor& out, const Add& add) {
  struct Meeting {
    std::int64_t output, input, weight;
  };
  std::vector<Meeting> meetings;
  const int kernel[] = {filter.space(0), filter.space(1), filter.space(2)};
  for_each_meeting(of.window, in, kernel, out,
                   [&](auto... places) { meetings.push_back({places...}); });
  const int outputs = filter.shape[0] / of.groups;
  const int inputs = filter.shape[1];
  for (int n = 0; n < out.shape[0]; ++n) {
    for (int k = 0; k < out.shape[1]; ++k) {
      for (int c = 0; c < inputs; ++c) {
        const int channel = k / outputs * inputs + c;
        const std::int64_t output = (std::int64_t(n) * out.shape[1] + k) * out.area();
        const std::int64_t input = (std::int64_t(n) * in.shape[1] + channel) * in.area();
        const std::int64_t weight = (std::int64_t(k) * inputs + c) * filter.area();
        for (const Meeting& m : meetings) {
          add(number_of(output + m.output), number_of(input + m.input),
              number_of(weight + m.weight));
        }
      }
    }
  }
}

int only_algorithm(int, int* returned, Algorithm* results) {
  constexpr int kEvery = 1;  // The first deterministic one of each kind.
  results[0] = {kEvery, kSuccess, 1.0f, 0, 1, 0, {}};
  *returned = 1;
  return kSuccess;
}

int set(Convolution* convolution, int axes, const int* pad, const int* stride, const int* dilation,
        int mode) {
  if (mode != 1) fake_cuda::die("a convolution that flips its filter is not imitated");
  convolution->window = Window();
  Window::copy(axes, pad, convolution->window.pad);
  Window::copy(axes, stride, convolution->window.stride);
  Window::copy(axes, dilation, convolution->window.dilation);
  return kSuccess;
}

}  // namespace

extern "C" {

int cudnnCreateConvolutionDescriptor(Convolution** of) { return fake_cuda::create(of); }
int cudnnDestroyConvolutionDescriptor(Convolution* of) { return fake_cuda::destroy(of); }
int cudnnSetConvolution2dDescriptor(Convolution* of, int pad_h, int pad_w, int stride_h,
                                    int stride_w, int dilation_h, int dilation_w, int mode, int) {
  const int pad[] = {pad_h, pad_w};
  const int stride[] = {stride_h, stride_w};
  const int dilation[] = {dilation_h, dilation_w};
  return set(of, 2, pad, stride, dilation, mode);
}
int cudnnSetConvolutionNdDescriptor(Convolution* of, int axes, const int* pad, const int* stride,
                                    const int* dilation, int mode, int) {
  return set(of, axes, pad, stride, dilation, mode);
}
int cudnnSetConvolutionMathType(Convolution*, int) { return kSuccess; }
int cudnnSetConvolutionGroupCount(Convolution* of, int groups) {
  of->groups = groups;
  return kSuccess;
}

// Of algorithms there is one of each kind, without a workspace, found or asked for.

#define FAKE_CUDA_ALGORITHM(KIND, FIRST, SECOND, THIRD, FOURTH)                                    \
  int cudnnGetConvolution##KIND##AlgorithmMaxCount(Handle*, int* count) {                          \
    *count = 1;                                                                                    \
    return kSuccess;                                                                               \
  }                                                                                                \
  int cudnnGetConvolution##KIND##Algorithm_v7(Handle*, FIRST*, SECOND*, THIRD*, FOURTH*, int most, \
                                              int* returned, Algorithm* results) {                 \
    return only_algorithm(most, returned, results);                                                \
  }                                                                                                \
  int cudnnFindConvolution##KIND##Algorithm(Handle*, FIRST*, SECOND*, THIRD*, FOURTH*, int most,   \
                                            int* returned, Algorithm* results) {                   \
    return only_algorithm(most, returned, results);                                                \
  }                                                                                                \
  int cudnnGetConvolution##KIND##WorkspaceSize(Handle*, FIRST*, SECOND*, THIRD*, FOURTH*, int,     \
                                               std::size_t* bytes) {                               \
    *bytes = 0;                                                                                    \
    return kSuccess;                                                                               \
  }
FAKE_CUDA_ALGORITHM(Forward, Tensor, Tensor, Convolution, Tensor)
FAKE_CUDA_ALGORITHM(BackwardData, Tensor, Tensor, Convolution, Tensor)
FAKE_CUDA_ALGORITHM(BackwardFilter, Tensor, Tensor, Convolution, Tensor)
#undef FAKE_CUDA_ALGORITHM

int cudnnConvolutionForward(Handle* handle, const void* alpha, Tensor* x_tensor, const void* x,
                            Tensor* w_tensor, const void* w, Convolution* of, int, void*,
                            std::size_t, const void* beta, Tensor* y_tensor, void* y) {
  const auto work = [of = *of, x = Array(x_tensor, x), w = Array(w_tensor, w),
                     y = Array(y_tensor, y), blend = Blend(y_tensor, alpha, beta)] {
    const Numbers input = x.read();
    const Numbers weight = w.read();
    Numbers sums(number_of(y.tensor.size()));
    for_each_product(
        of, x.tensor, w.tensor, y.tensor,
        [&](std::size_t o, std::size_t i, std::size_t k) { sums[o] += input[i] * weight[k]; });
    y.write(sums, blend.alpha, blend.beta);
  };
  return put(handle, "cudnnConvolutionForward", work);
}

int cudnnConvolutionBackwardData(Handle* handle, const void* alpha, Tensor* w_tensor, const void* w,
                                 Tensor* dy_tensor, const void* dy, Convolution* of, int, void*,
                                 std::size_t, const void* beta, Tensor* dx_tensor, void* dx) {
  const auto work = [of = *of, w = Array(w_tensor, w), dy = Array(dy_tensor, dy),
                     dx = Array(dx_tensor, dx), blend = Blend(dx_tensor, alpha, beta)] {
    const Numbers weight = w.read();
    const Numbers gradient = dy.read();
    Numbers sums(number_of(dx.tensor.size()));
    for_each_product(
        of, dx.tensor, w.tensor, dy.tensor,
        [&](std::size_t o, std::size_t i, std::size_t k) { sums[i] += gradient[o] * weight[k]; });
    dx.write(sums, blend.alpha, blend.beta);
  };
  return put(handle, "cudnnConvolutionBackwardData", work);
}

int cudnnConvolutionBackwardFilter(Handle* handle, const void* alpha, Tensor* x_tensor,
                                   const void* x, Tensor* dy_tensor, const void* dy,
                                   Convolution* of, int, void*, std::size_t, const void* beta,
                                   Tensor* dw_tensor, void* dw) {
  const auto work = [of = *of, x = Array(x_tensor, x), dy = Array(dy_tensor, dy),
                     dw = Array(dw_tensor, dw), blend = Blend(dw_tensor, alpha, beta)] {
    const Numbers input = x.read();
    const Numbers gradient = dy.read();
    Numbers sums(number_of(dw.tensor.size()));
    for_each_product(
        of, x.tensor, dw.tensor, dy.tensor,
        [&](std::size_t o, std::size_t i, std::size_t k) { sums[k] += gradient[o] * input[i]; });
    dw.write(sums, blend.alpha, blend.beta);
  };
  return put(handle, "cudnnConvolutionBackwardFilter", work);
}

/// Adds a number for each channel.
int cudnnAddTensor(Handle* handle, const void* alpha, Tensor* a_tensor, const void* a,
                   const void* beta, Tensor* y_tensor, void* y) {
  if (a_tensor->size() != y_tensor->shape[1]) fake_cuda::die("cudnnAddTensor adds a bias only");
  const auto work = [a = Array(a_tensor, a), y = Array(y_tensor, y),
                     blend = Blend(y_tensor, alpha, beta)] {
    const Numbers bias = a.read();
    Numbers sums(number_of(y.tensor.size()));
    const std::size_t area = number_of(y.tensor.area());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = bias[i / area % bias.size()];
    y.write(sums, blend.alpha, blend.beta);
  };
  return put(handle, "cudnnAddTensor", work);
}

int cudnnConvolutionBackwardBias(Handle* handle, const void* alpha, Tensor* dy_tensor,
                                 const void* dy, const void* beta, Tensor* db_tensor, void* db) {
  const auto work = [dy = Array(dy_tensor, dy), db = Array(db_tensor, db),
                     blend = Blend(db_tensor, alpha, beta)] {
    const Numbers gradient = dy.read();
    Numbers sums(number_of(db.tensor.size()));
    const std::size_t area = number_of(dy.tensor.area());
    for (std::size_t i = 0; i < gradient.size(); ++i) sums[i / area % sums.size()] += gradient[i];
    db.write(sums, blend.alpha, blend.beta);
  };
  return put(handle, "cudnnConvolutionBackwardBias", work);
}

}  // extern "C"

// Batch normalization with statistics of channels (CUDNN_BATCHNORM_SPATIAL).

#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "libraries/cudnn/tensor.h"

using fake_cuda::Array;
using fake_cuda::Blend;
using fake_cuda::Handle;
using fake_cuda::kDouble;
using fake_cuda::kFloat;
using fake_cuda::kSuccess;
using fake_cuda::Numbers;
using fake_cuda::put;
using fake_cuda::Tensor;
using fake_cuda::Values;

namespace {

void need_channels(int mode) {
  if (mode == 0) fake_cuda::die("statistics of single activations are not imitated");
}

/// Mean and the reciprocal of the deviation, by channel.
struct Moments {
  Numbers mean;
  Numbers variance;
};

/// Where the channels of a tensor lie among its numbers.
class Channels {
 public:
  explicit Channels(const Tensor& tensor)
      : number_(static_cast<std::size_t>(tensor.shape[1])),
        area_(static_cast<std::size_t>(tensor.area())) {}

  std::size_t number() const { return number_; }
  std::size_t of(std::size_t element) const { return element / area_ % number_; }

  Numbers mean(const Numbers& x) const {
    Numbers sums(number_);
    for (std::size_t i = 0; i < x.size(); ++i) sums[of(i)] += x[i];
    for (double& sum : sums) sum /= size(x);
    return sums;
  }
  Moments moments(const Numbers& x) const {
    Moments m{mean(x), {}};
    Numbers squares(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double deviation = x[i] - m.mean[of(i)];
      squares[i] = deviation * deviation;
    }
    m.variance = mean(squares);
    return m;
  }
  /// Elements of a channel.
  double size(const Numbers& x) const {
    return static_cast<double>(x.size()) / static_cast<double>(number_);
  }

 private:
  std::size_t number_;
  std::size_t area_;
};

/// Outputs, in place of x.
void normalize(const Channels& channels, const Moments& moments, double eps, const Numbers& gamma,
               const Numbers& beta, Numbers* x) {
  for (std::size_t i = 0; i < x->size(); ++i) {
    const std::size_t c = channels.of(i);
    (*x)[i] =
        ((*x)[i] - moments.mean[c]) / std::sqrt(moments.variance[c] + eps) * gamma[c] + beta[c];
  }
}

/// An array by channel that the caller may leave out.
struct Optional {
  Array array;
  bool is_there;

  Optional(const Tensor* tensor, const void* address)
      : array(tensor, address), is_there(address != nullptr) {}

  void write(const Numbers& numbers, double alpha, double beta) const {
    if (is_there) array.write(numbers, alpha, beta);
  }
};

}  // namespace

extern "C" {

int cudnnDeriveBNTensorDescriptor(Tensor* derived, Tensor* x, int mode) {
  need_channels(mode);
  derived->type = x->type == kDouble ? kDouble : kFloat;
  derived->axes = x->axes;
  for (int axis = 0; axis < x->axes; ++axis) {
    derived->shape[axis] = axis == 1 ? x->shape[1] : 1;
    derived->strides[axis] = axis == 0 ? x->shape[1] : 1;
  }
  return kSuccess;
}

int cudnnBatchNormalizationForwardInference(Handle* handle, int mode, const void* alpha,
                                            const void* beta, Tensor* x_tensor, const void* x,
                                            Tensor* y_tensor, void* y, Tensor* channel,
                                            const void* scale, const void* shift, const void* mean,
                                            const void* variance, double eps) {
  need_channels(mode);
  const auto work = [=, x = Array(x_tensor, x), y = Array(y_tensor, y),
                     scale = Array(channel, scale), shift = Array(channel, shift),
                     mean = Array(channel, mean), variance = Array(channel, variance),
                     blend = Blend(y_tensor, alpha, beta)] {
    Numbers numbers = x.read();
    normalize(Channels(x.tensor), {mean.read(), variance.read()}, eps, scale.read(), shift.read(),
              &numbers);
    y.write(numbers, blend.alpha, blend.beta);
  };
  return put(handle, "cudnnBatchNormalizationForwardInference", work);
}

/// The running variance is that of samples, divided by n - 1.
int cudnnBatchNormalizationForwardTraining(Handle* handle, int mode, const void* alpha,
                                           const void* beta, Tensor* x_tensor, const void* x,
                                           Tensor* y_tensor, void* y, Tensor* channel,
                                           const void* scale, const void* shift, double factor,
                                           void* running_mean, void* running_variance, double eps,
                                           void* saved_mean, void* saved_deviation) {
  need_channels(mode);
  const auto work =
      [=, x = Array(x_tensor, x), y = Array(y_tensor, y), scale = Array(channel, scale),
       shift = Array(channel, shift), running_mean = Optional(channel, running_mean),
       running_variance = Optional(channel, running_variance),
       saved_mean = Optional(channel, saved_mean),
       saved_deviation = Optional(channel, saved_deviation), blend = Blend(y_tensor, alpha, beta)] {
        Numbers numbers = x.read();
        const Channels channels(x.tensor);
        const Moments moments = channels.moments(numbers);
        const double n = channels.size(numbers);
        Numbers reciprocals;
        for (const double v : moments.variance) reciprocals.push_back(1 / std::sqrt(v + eps));
        running_mean.write(moments.mean, factor, 1 - factor);
        running_variance.write(moments.variance, factor * (n > 1 ? n / (n - 1) : 1), 1 - factor);
        saved_mean.write(moments.mean, 1, 0);
        saved_deviation.write(reciprocals, 1, 0);
        normalize(channels, moments, eps, scale.read(), shift.read(), &numbers);
        y.write(numbers, blend.alpha, blend.beta);
      };
  return put(handle, "cudnnBatchNormalizationForwardTraining", work);
}

int cudnnBatchNormalizationBackward(Handle* handle, int mode, const void* alpha_data,
                                    const void* beta_data, const void* alpha_parameters,
                                    const void* beta_parameters, Tensor* x_tensor, const void* x,
                                    Tensor* dy_tensor, const void* dy, Tensor* dx_tensor, void* dx,
                                    Tensor* channel, const void* scale, void* dscale, void* dshift,
                                    double eps, const void*, const void*) {
  need_channels(mode);
  // What forward saved is computed anew: it is the same.
  const auto work = [=, x = Array(x_tensor, x), dy = Array(dy_tensor, dy),
                     dx = Array(dx_tensor, dx), scale = Array(channel, scale),
                     dscale = Array(channel, dscale), dshift = Array(channel, dshift),
                     data = Blend(dx_tensor, alpha_data, beta_data),
                     parameters = Blend(dx_tensor, alpha_parameters, beta_parameters)] {
    Numbers normalized = x.read();
    const Numbers gradient = dy.read();
    const Channels channels(x.tensor);
    const Moments moments = channels.moments(normalized);
    normalize(channels, moments, eps, Numbers(channels.number(), 1), Numbers(channels.number()),
              &normalized);
    Numbers products(gradient);
    for (std::size_t i = 0; i < products.size(); ++i) products[i] *= normalized[i];
    const Numbers mean = channels.mean(gradient);
    const Numbers mean_of_products = channels.mean(products);
    const Numbers gamma = scale.read();
    Numbers result(gradient);
    for (std::size_t i = 0; i < result.size(); ++i) {
      const std::size_t c = channels.of(i);
      result[i] = gamma[c] / std::sqrt(moments.variance[c] + eps) *
                  (gradient[i] - mean[c] - normalized[i] * mean_of_products[c]);
    }
    dx.write(result, data.alpha, data.beta);
    const double n = channels.size(gradient);
    dscale.write(mean_of_products, parameters.alpha * n, parameters.beta);
    dshift.write(mean, parameters.alpha * n, parameters.beta);
  };
  return put(handle, "cudnnBatchNormalizationBackward", work);
}

}  // extern "C"

#include "mxnet/oracle.h"

#include <cmath>

namespace gluon_syncbn::tests {
namespace {

/// Calls visit(shard, element, channel) for all elements.
template <class Visit>
void for_each(const Tensor& tensor, const Visit& visit) {
  for (std::size_t s = 0; s < tensor.shapes.size(); ++s) {
    const Shape& shape = tensor.shapes[s];
    std::size_t inner = 1;
    for (std::size_t i = 2; i < shape.size(); ++i) inner *= static_cast<std::size_t>(shape[i]);
    const auto channels = static_cast<std::size_t>(shape[1]);
    for (std::size_t i = 0; i < tensor.values[s].size(); ++i) visit(s, i, i / inner % channels);
  }
}

}  // namespace

Normalized normalize(const Tensor& x, const Options& options, bool is_train,
                     Parameters* parameters) {
  const std::size_t channels = parameters->gamma.size();
  Normalized result{x, x, parameters->gamma, parameters->running_mean, {}, is_train};
  if (options.fix_gamma) result.gamma.assign(channels, 1);
  Values variance = parameters->running_var;
  if (result.of_batch) {
    Values counts(channels, 0);
    result.mean.assign(channels, 0);
    variance.assign(channels, 0);
    for_each(x, [&](std::size_t s, std::size_t i, std::size_t c) {
      result.mean[c] += x.values[s][i];
      counts[c] += 1;
    });
    for (std::size_t c = 0; c < channels; ++c) result.mean[c] /= counts[c];
    for_each(x, [&](std::size_t s, std::size_t i, std::size_t c) {
      const long double deviation = x.values[s][i] - result.mean[c];
      variance[c] += deviation * deviation / counts[c];
    });
    ++parameters->batches;
    const long double momentum = options.momentum.value_or(1 - 1.0 / parameters->batches);
    for (std::size_t c = 0; c < channels; ++c) {
      for (const auto& [running, batch] : {std::pair(&parameters->running_mean, &result.mean),
                                           std::pair(&parameters->running_var, &variance)}) {
        (*running)[c] = momentum * (*running)[c] + (1 - momentum) * (*batch)[c];
      }
    }
  }
  for (const long double value : variance) {
    result.inv_std.push_back(1 / std::sqrt(value + static_cast<long double>(kEps)));
  }
  for_each(x, [&](std::size_t s, std::size_t i, std::size_t c) {
    result.out.values[s][i] =
        result.gamma[c] * (x.values[s][i] - result.mean[c]) * result.inv_std[c] +
        parameters->beta[c];
  });
  return result;
}

Gradients differentiate(const Normalized& forward, const Tensor& dy, const Options& options) {
  const std::size_t channels = forward.gamma.size();
  const std::vector<Values> zeros(dy.shapes.size(), Values(channels, 0));
  Gradients result{forward.x, zeros, zeros};
  Values counts(channels, 0);
  Values sum(channels, 0);  // over the whole batch, of dy and of dy * xhat
  Values sum_normalized(channels, 0);
  const auto normalized = [&](std::size_t s, std::size_t i, std::size_t c) {
    return (forward.x.values[s][i] - forward.mean[c]) * forward.inv_std[c];
  };
  for_each(dy, [&](std::size_t s, std::size_t i, std::size_t c) {
    const long double gradient = dy.values[s][i];
    counts[c] += 1;
    sum[c] += gradient;
    sum_normalized[c] += gradient * normalized(s, i, c);
    result.beta[s][c] += gradient;
    if (!options.fix_gamma) result.gamma[s][c] += gradient * normalized(s, i, c);
  });
  for_each(dy, [&](std::size_t s, std::size_t i, std::size_t c) {
    long double gradient = dy.values[s][i];
    if (forward.of_batch) {
      gradient -= (sum[c] + normalized(s, i, c) * sum_normalized[c]) / counts[c];
    }
    result.x.values[s][i] = forward.gamma[c] * forward.inv_std[c] * gradient;
  });
  return result;
}

}  // namespace gluon_syncbn::tests

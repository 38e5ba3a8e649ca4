#include "scenarios/oracle.h"

#include <cmath>

namespace gluon_syncbn::scenarios {
namespace {

/// Calls visit(shard, element, channel) for all elements.
template <class Visit>
void for_each(const Tensor& tensor, int axis, const Visit& visit) {
  for (std::size_t shard = 0; shard < tensor.shapes.size(); ++shard) {
    const host::Shape& shape = tensor.shapes[shard];
    const std::size_t at =
        static_cast<std::size_t>(axis < 0 ? axis + static_cast<int>(shape.size()) : axis);
    std::size_t inner = 1;
    for (std::size_t i = at + 1; i < shape.size(); ++i) inner *= static_cast<std::size_t>(shape[i]);
    const auto channels = static_cast<std::size_t>(shape[at]);
    for (std::size_t i = 0; i < tensor.values[shard].size(); ++i) {
      visit(shard, i, i / inner % channels);
    }
  }
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  Tensor sum = a;
  for (std::size_t shard = 0; shard < a.values.size(); ++shard) {
    for (std::size_t i = 0; i < a.values[shard].size(); ++i)
      sum.values[shard][i] += b.values[shard][i];
  }
  return sum;
}

NormOutput normalize(const Tensor& x, const NormParameters& parameters, const NormOptions& options,
                     bool is_train) {
  const std::size_t channels = parameters.gamma.size();
  NormOutput result;
  result.of_batch = is_train && !options.use_global_stats;
  result.running_mean = parameters.running_mean;
  result.running_var = parameters.running_var;
  result.mean = parameters.running_mean;
  Values variance = parameters.running_var;
  if (result.of_batch) {
    Values counts(channels, 0);
    result.mean.assign(channels, 0);
    variance.assign(channels, 0);
    for_each(x, options.axis, [&](std::size_t s, std::size_t i, std::size_t c) {
      result.mean[c] += x.values[s][i];
      counts[c] += 1;
    });
    for (std::size_t c = 0; c < channels; ++c) result.mean[c] /= counts[c];
    for_each(x, options.axis, [&](std::size_t s, std::size_t i, std::size_t c) {
      variance[c] += (x.values[s][i] - result.mean[c]) * (x.values[s][i] - result.mean[c]);
    });
    for (std::size_t c = 0; c < channels; ++c) {
      variance[c] /= counts[c];
      result.running_mean[c] *= options.momentum;
      result.running_mean[c] += (1 - options.momentum) * result.mean[c];
      result.running_var[c] *= options.momentum;
      result.running_var[c] += (1 - options.momentum) * variance[c];
    }
  }
  for (const double value : variance) result.inv_std.push_back(1 / std::sqrt(value + options.eps));
  result.out = x;
  for_each(x, options.axis, [&](std::size_t s, std::size_t i, std::size_t c) {
    const double gamma = options.fix_gamma ? 1 : parameters.gamma[c];
    result.out.values[s][i] =
        gamma * (x.values[s][i] - result.mean[c]) * result.inv_std[c] + parameters.beta[c];
  });
  return result;
}

NormGradients gradients(const Tensor& x, const Tensor& out_gradient, const NormOutput& output,
                        const NormParameters& parameters, const NormOptions& options) {
  const std::size_t channels = parameters.gamma.size();
  const std::size_t shards = x.shapes.size();
  NormGradients result{x, std::vector<Values>(shards, Values(channels, 0)),
                       std::vector<Values>(shards, Values(channels, 0))};
  Values counts(channels, 0);
  Values by_normalized(channels, 0);  // sums over the whole batch of dy * xhat and of dy
  Values plain(channels, 0);
  const auto normalized = [&](std::size_t s, std::size_t i, std::size_t c) {
    return (x.values[s][i] - output.mean[c]) * output.inv_std[c];
  };
  for_each(x, options.axis, [&](std::size_t s, std::size_t i, std::size_t c) {
    const double dy = out_gradient.values[s][i];
    counts[c] += 1;
    plain[c] += dy;
    by_normalized[c] += dy * normalized(s, i, c);
    result.beta[s][c] += dy;
    if (!options.fix_gamma) result.gamma[s][c] += dy * normalized(s, i, c);
  });
  for_each(x, options.axis, [&](std::size_t s, std::size_t i, std::size_t c) {
    const double scale = (options.fix_gamma ? 1 : parameters.gamma[c]) * output.inv_std[c];
    double gradient = out_gradient.values[s][i];
    if (output.of_batch) {
      gradient -= plain[c] / counts[c] + normalized(s, i, c) * by_normalized[c] / counts[c];
    }
    result.data.values[s][i] = scale * gradient;
  });
  return result;
}

}  // namespace gluon_syncbn::scenarios

#pragma once

// Batch normalization of the whole batch in long double, written from its definition (Ioffe and
// Szegedy 2015, algorithm 1, and the gradients of section 3) and not from the code under test.

#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "common/layout.h"

namespace gluon_syncbn::tests {

using Values = std::vector<long double>;

/// The shards of a batch, which may differ in size but not in channels.
struct Tensor {
  std::vector<Layout> layouts;
  std::vector<Values> shards;

  /// Calls visit(shard, element, channel) for all elements.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::size_t s = 0; s < shards.size(); ++s) {
      const auto inner = static_cast<std::size_t>(layouts[s].inner);
      const auto channels = static_cast<std::size_t>(layouts[s].channels);
      for (std::size_t i = 0; i < shards[s].size(); ++i) visit(s, i, i / inner % channels);
    }
  }
  /// The number of elements per channel.
  long double count() const {
    long double sum = 0;
    for (const Layout& layout : layouts) sum += static_cast<long double>(layout.count());
    return sum;
  }
};

constexpr double kEps = 1e-3;

struct Options {
  std::optional<double> momentum = 0.9;
  bool fix_gamma = false;
};

struct Parameters {
  Values gamma;
  Values beta;
  Values running_mean;
  Values running_var;
  int batches = 0;
};

struct Normalized {
  Tensor x;
  Tensor out;
  Values gamma;
  Values mean;
  Values inv_std;
  bool of_batch = false;
};

struct Gradients {
  Tensor x;
  std::vector<Values> gamma;  ///< the part of each shard
  std::vector<Values> beta;
};

/// Moves the running statistics.
inline Normalized normalize(const Tensor& x, const Options& options, bool is_train,
                            Parameters* parameters) {
  const std::size_t channels = parameters->gamma.size();
  Normalized result{x, x, parameters->gamma, parameters->running_mean, {}, is_train};
  if (options.fix_gamma) result.gamma.assign(channels, 1);
  Values variance = parameters->running_var;
  if (result.of_batch) {
    result.mean.assign(channels, 0);
    variance.assign(channels, 0);
    x.for_each([&](std::size_t s, std::size_t i, std::size_t c) {
      result.mean[c] += x.shards[s][i] / x.count();
    });
    x.for_each([&](std::size_t s, std::size_t i, std::size_t c) {
      const long double deviation = x.shards[s][i] - result.mean[c];
      variance[c] += deviation * deviation / x.count();
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
  x.for_each([&](std::size_t s, std::size_t i, std::size_t c) {
    result.out.shards[s][i] =
        result.gamma[c] * (x.shards[s][i] - result.mean[c]) * result.inv_std[c] +
        parameters->beta[c];
  });
  return result;
}

inline Gradients differentiate(const Normalized& forward, const Tensor& dy,
                               const Options& options) {
  const std::size_t channels = forward.gamma.size();
  const std::vector<Values> zeros(dy.shards.size(), Values(channels, 0));
  Gradients result{forward.x, zeros, zeros};
  Values sum(channels, 0);  // sums over the whole batch of dy and, below, of dy * xhat
  Values sum_normalized(channels, 0);
  const auto normalized = [&](std::size_t s, std::size_t i, std::size_t c) {
    return (forward.x.shards[s][i] - forward.mean[c]) * forward.inv_std[c];
  };
  dy.for_each([&](std::size_t s, std::size_t i, std::size_t c) {
    const long double gradient = dy.shards[s][i];
    sum[c] += gradient;
    sum_normalized[c] += gradient * normalized(s, i, c);
    result.beta[s][c] += gradient;
    if (!options.fix_gamma) result.gamma[s][c] += gradient * normalized(s, i, c);
  });
  dy.for_each([&](std::size_t s, std::size_t i, std::size_t c) {
    long double gradient = dy.shards[s][i];
    if (forward.of_batch) {
      gradient -= (sum[c] + normalized(s, i, c) * sum_normalized[c]) / dy.count();
    }
    result.x.shards[s][i] = forward.gamma[c] * forward.inv_std[c] * gradient;
  });
  return result;
}

}  // namespace gluon_syncbn::tests

#pragma once

// Batch normalization in long double, written from its definition (Ioffe and Szegedy 2015,
// algorithm 1, and the gradients of section 3) and not from the code under test. normalize() and
// differentiate() take a whole batch. layer_case.h takes the same definitions element by element.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/layout.h"
#include "norm/activation.h"

namespace gluon_syncbn::tests {

using Values = std::vector<long double>;

inline constexpr Activation kActivationsAndNone[] = {{},
                                                     {ActType::kRelu, 0},
                                                     {ActType::kLeaky, 0.1},
                                                     {ActType::kElu, 1},
                                                     {ActType::kElu, 0.4},
                                                     {ActType::kLeaky, 3}};

/// Returns act(z).
inline long double activated(const Activation& activation, long double z) {
  if (!(z <= 0) || activation.type == ActType::kNone) return z;
  const auto slope = static_cast<long double>(activation.slope);
  if (activation.type == ActType::kRelu) return 0;
  return activation.type == ActType::kLeaky ? slope * z : slope * std::expm1(z);
}

/// Returns act'(z). At 0 it is the derivative from below.
inline long double steepness(const Activation& activation, long double z) {
  if (z > 0 || activation.type == ActType::kNone) return 1;
  const auto slope = static_cast<long double>(activation.slope);
  return activation.type == ActType::kElu ? slope * std::exp(z) : slope;
}

/// Returns act'(z), computed from y = act(z).
inline long double steepness_at(const Activation& activation, long double y) {
  if (y > 0 || activation.type != ActType::kElu) return steepness(activation, y);
  return y + static_cast<long double>(activation.slope);
}

/// Returns z, computed from y = act(z).
inline long double inverse(const Activation& activation, long double y) {
  if (y > 0 || activation.type == ActType::kNone) return y;
  const auto slope = static_cast<long double>(activation.slope);
  return activation.type == ActType::kLeaky ? y / slope : std::log1p(y / slope);
}

/// The numbers of a channel that determine its outputs and gradients.
struct Channel {
  long double mean = 0;
  long double inv_std = 1;
  long double gamma = 1;
  long double beta = 0;
  long double count = 0;  ///< elements of the batch; 0: the statistics do not depend on them
  long double sum_dz = 0;
  long double sum_dz_centered = 0;  ///< of dz * (x - mean)

  long double scale() const { return gamma * inv_std; }
  long double z(long double x) const { return (x - mean) * scale() + beta; }
  // dx is scale * dz + slope * (x - mean) + constant.
  long double slope() const { return share() * sum_dz_centered * inv_std * inv_std; }
  long double constant() const { return share() * sum_dz; }
  long double dx(long double dz, long double centered) const {
    return scale() * dz + (slope() == 0 ? 0 : slope() * centered) + constant();
  }

 private:
  long double share() const { return count > 0 ? -scale() / count : 0; }
};

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
  std::size_t channels() const { return static_cast<std::size_t>(layouts.front().channels); }
  /// The number of elements per channel.
  long double count() const {
    long double sum = 0;
    for (const Layout& layout : layouts) sum += static_cast<long double>(layout.count());
    return sum;
  }
};

/// The mean of each channel, and the sum of the squared deviations from the mean.
struct ExactMoments {
  Values mean;
  Values m2;

  explicit ExactMoments(const Tensor& x) : mean(x.channels()), m2(x.channels()) {
    x.for_each([&](std::size_t s, std::size_t i, std::size_t c) { mean[c] += x.shards[s][i]; });
    for (long double& sum : mean) sum /= std::max(x.count(), 1.0L);
    x.for_each([&](std::size_t s, std::size_t i, std::size_t c) {
      const long double deviation = x.shards[s][i] - mean[c];
      m2[c] += deviation * deviation;
    });
  }
};

constexpr double kEps = 1e-3;

struct Options {
  std::optional<double> momentum = 0.9;
  bool fix_gamma = false;
  Activation activation{};
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
  Tensor z;
  Tensor out;
  std::vector<Channel> channels;
};

struct Gradients {
  Tensor x;
  Tensor shortcut;
  std::vector<Values> gamma;  ///< the part of each shard
  std::vector<Values> beta;
};

/// Moves the running statistics. `shortcut` is added to z; null: none.
inline Normalized normalize(const Tensor& x, const Options& options, bool is_train,
                            Parameters* parameters, const Tensor* shortcut = nullptr) {
  Normalized result{x, x, x, std::vector<Channel>(x.channels())};
  Values mean = parameters->running_mean;
  Values variance = parameters->running_var;
  if (is_train) {
    const ExactMoments moments(x);
    mean = moments.mean;
    ++parameters->batches;
    const long double momentum = options.momentum.value_or(1 - 1.0 / parameters->batches);
    for (std::size_t c = 0; c < mean.size(); ++c) {
      variance[c] = moments.m2[c] / x.count();
      for (const auto& [running, batch] : {std::pair(&parameters->running_mean, mean[c]),
                                           std::pair(&parameters->running_var, variance[c])}) {
        (*running)[c] = momentum * (*running)[c] + (1 - momentum) * batch;
      }
    }
  }
  for (std::size_t c = 0; c < mean.size(); ++c) {
    result.channels[c].mean = mean[c];
    result.channels[c].inv_std = 1 / std::sqrt(variance[c] + static_cast<long double>(kEps));
    if (!options.fix_gamma) result.channels[c].gamma = parameters->gamma[c];
    result.channels[c].beta = parameters->beta[c];
    if (is_train) result.channels[c].count = x.count();
  }
  x.for_each([&](std::size_t s, std::size_t i, std::size_t c) {
    long double& z = result.z.shards[s][i];
    z = result.channels[c].z(x.shards[s][i]) + (shortcut ? shortcut->shards[s][i] : 0);
    result.out.shards[s][i] = activated(options.activation, z);
  });
  return result;
}

inline Gradients differentiate(const Normalized& forward, const Tensor& dy,
                               const Options& options) {
  std::vector<Channel> channels = forward.channels;
  const std::vector<Values> zeros(dy.shards.size(), Values(channels.size(), 0));
  Gradients result{dy, dy, zeros, zeros};
  const auto centered = [&](std::size_t s, std::size_t i, std::size_t c) {
    return forward.x.shards[s][i] - channels[c].mean;
  };
  dy.for_each([&](std::size_t s, std::size_t i, std::size_t c) {
    const long double dz = dy.shards[s][i] * steepness(options.activation, forward.z.shards[s][i]);
    result.shortcut.shards[s][i] = dz;
    channels[c].sum_dz += dz;
    channels[c].sum_dz_centered += dz * centered(s, i, c);
    result.beta[s][c] += dz;
    if (!options.fix_gamma) result.gamma[s][c] += dz * centered(s, i, c) * channels[c].inv_std;
  });
  dy.for_each([&](std::size_t s, std::size_t i, std::size_t c) {
    result.x.shards[s][i] = channels[c].dx(result.shortcut.shards[s][i], centered(s, i, c));
  });
  return result;
}

/// Checks that actual(i) differs from expected(i) by at most tolerance(i), for all i below `size`.
/// What is expected not to be finite has no tolerance.
template <class Actual, class Expected, class Tolerance>
void check_close(const std::string& what, std::size_t size, const Actual& actual,
                 const Expected& expected, const Tolerance& tolerance) {
  for (std::size_t i = 0; i < size; ++i) {
    const auto is = static_cast<long double>(actual(i));
    const long double should_be = expected(i);
    const auto allowed = static_cast<long double>(tolerance(i));
    if (std::isfinite(should_be) ? std::fabs(is - should_be) <= allowed
                                 : is == should_be || (std::isnan(is) && std::isnan(should_be))) {
      continue;
    }
    FAIL_CHECK(what << " at " << i << " is " << static_cast<double>(is) << " but "
                    << static_cast<double>(should_be) << " is expected, by at most "
                    << static_cast<double>(allowed));
    return;
  }
}

}  // namespace gluon_syncbn::tests

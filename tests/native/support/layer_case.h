#pragma once

// A layer with given statistics and sums, for the kernels of CPUs and of GPUs: with all
// activations, with a shortcut and in place. oracle.h has the definitions; here are data and error
// bounds.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "common/dtype.h"
#include "common/layout.h"
#include "norm/activation.h"
#include "norm/variants.h"
#include "support/arrays.h"
#include "support/oracle.h"

namespace gluon_syncbn::tests {

/// The arrays from which dz is computed: the input, the input and the output, or, in place, the
/// output.
enum class By { kInput, kOutput, kOutputAlone };

/// A layer whose batch has given moments and sums, in long double. The output gradient of an
/// element is 0 if rounding decides on which side of its kink the activation is.
template <class T>
struct LayerCase {
  using R = Real<T>;
  static constexpr double kCount = 7;
  static constexpr double kEps = 0.125;

  LayerCase(const Layout& layout_in, const Activation& activation_in, std::uint32_t seed)
      : layout(layout_in),
        activation(activation_in),
        fix_gamma(seed % 4 == 0),
        of_batch(seed % 6 != 0),
        x(layout, mean_of(seed), 1, seed),
        y(layout, 0, 1, seed + 1),
        dy(layout, 0.1, 1, seed + 2),
        means(means_near(layout, mean_of(seed), seed)),
        m2(parameters(layout, 5, seed + 3)),
        gamma(as<R>(parameters(layout, seed % 2 ? 1.5 : -1.5, seed + 4))),
        beta(as<R>(parameters(layout, -0.5, seed + 5))),
        sum_dz(parameters(layout, 3, seed + 6)),
        sum_dz_centered(parameters(layout, -2, 3)) {
    const double least = activation.type == ActType::kElu ? -0.9 * activation.slope : -9;
    for (std::size_t i = 0; i < x.elements.size(); ++i) {
      if (std::fabs(z(i)) < 1e-3L) dy.elements[i] = T{};
      y.elements[i] = Type<T>::of(std::max(static_cast<double>(y.at(i)), least));
    }
  }

  std::size_t channels() const { return means.size(); }
  bool in_place() const { return by == By::kOutputAlone; }
  DzFrom dz_from() const {
    return gluon_syncbn::dz_from(activation.type, by == By::kOutput, in_place());
  }
  long double steepest() const { return std::max(1.0, activation.slope); }

  Channel channel(std::size_t c) const {
    const long double variance = static_cast<long double>(m2[c]) / kCount;
    return {means[c],
            1 / std::sqrt(variance + kEps),
            fix_gamma ? 1 : static_cast<long double>(gamma[c]),
            beta[c],
            of_batch ? kCount : 0,
            sum_dz[c],
            sum_dz_centered[c]};
  }
  std::vector<double> inv_stds() const {
    std::vector<double> values;
    for (std::size_t c = 0; c < channels(); ++c) {
      values.push_back(static_cast<double>(channel(c).inv_std));
    }
    return values;
  }

  // The value of an element, and the sum of its absolute terms. The logarithm turns a relative
  // error into an absolute one, and exp() an absolute error into a relative one.

  long double z(std::size_t i) const { return channel_at(i).z(x.at(i)); }
  long double size_of_z(std::size_t i) const {
    const Channel channel = channel_at(i);
    if (!in_place()) {
      return std::fabs((x.at(i) - channel.mean) * channel.scale()) + std::fabs(channel.beta);
    }
    const long double at = y.at(i);
    const bool curved = activation.type == ActType::kElu && at < 0;
    const long double steep = curved ? -at / (at + static_cast<long double>(activation.slope)) : 0;
    return std::fabs(inverse(activation, at)) + std::fabs(channel.beta) + steep;
  }
  /// `shortcut` is y, or 0.
  long double out(std::size_t i, long double shortcut) const {
    return activated(activation, z(i) + shortcut);
  }
  long double size_of_out(std::size_t i, long double shortcut) const {
    return steepest() * (size_of_z(i) + std::fabs(shortcut));
  }
  long double centered(std::size_t i) const {
    const Channel channel = channel_at(i);
    if (!in_place()) return x.at(i) - channel.mean;
    return (inverse(activation, y.at(i)) - channel.beta) / channel.scale();
  }
  long double size_of_centered(std::size_t i) const {
    if (!in_place()) return std::fabs(centered(i));
    return size_of_z(i) / std::fabs(channel_at(i).scale());
  }
  long double dz(std::size_t i) const {
    return dy.at(i) *
           (by == By::kInput ? steepness(activation, z(i)) : steepness_at(activation, y.at(i)));
  }
  long double size_of_dz(std::size_t i) const {
    if (activation.type == ActType::kNone) return std::fabs(dz(i));
    if (in_place()) return std::fabs(dy.at(i)) * steepest();
    return std::fabs(dz(i)) * (1 + (by == By::kInput ? size_of_z(i) : std::fabs(y.at(i))));
  }
  long double dx(std::size_t i) const { return channel_at(i).dx(dz(i), centered(i)); }
  long double size_of_dx(std::size_t i) const {
    const Channel channel = channel_at(i);
    // The numbers of a channel are in double, so that data in double is rounded as much.
    const long double rounded = std::is_same_v<T, double> ? 2 : 1;
    return rounded *
           (std::fabs(channel.scale()) * size_of_dz(i) +
            std::fabs(channel.slope()) * size_of_centered(i) + std::fabs(channel.constant()));
  }

  Layout layout;
  Activation activation;
  bool fix_gamma;
  bool of_batch;  ///< false: running statistics, which dx does not go through
  By by = By::kInput;
  Data<T> x;
  Data<T> y;  // and the shortcut
  Data<T> dy;
  std::vector<double> means;
  std::vector<double> m2;
  std::vector<R> gamma;
  std::vector<R> beta;
  std::vector<double> sum_dz;
  std::vector<double> sum_dz_centered;

 private:
  Channel channel_at(std::size_t i) const { return channel(x.channel(i)); }
};

}  // namespace gluon_syncbn::tests

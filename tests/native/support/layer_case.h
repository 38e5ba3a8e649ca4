#pragma once

// A layer with given statistics and sums, for the kernels of CPUs and of GPUs: with all
// activations, with a shortcut and in place. oracle.h has the definitions; here are data and error
// bounds. kernel_rows.h lists the cases.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "common/dtype.h"
#include "common/layout.h"
#include "norm/activation.h"
#include "norm/variants.h"
#include "support/arrays.h"
#include "support/kernel_rows.h"
#include "support/oracle.h"

namespace gluon_syncbn::tests {

/// The arrays from which dz is computed: the input, the input and the output, or, in place, the
/// output.
enum class By { kInput, kOutput, kOutputAlone };

inline constexpr double kNotFinite[] = {std::numeric_limits<double>::infinity(),
                                        -std::numeric_limits<double>::infinity(),
                                        std::numeric_limits<double>::quiet_NaN()};

/// Spoils the last element of channels 1 to 3.
template <class T>
void spoil(Data<T>* data) {
  const Layout& layout = data->layout;
  for (std::int64_t c = 1; c <= 3; ++c) {
    const std::int64_t run = (layout.outer - 1) * layout.channels + c;
    data->elements[static_cast<std::size_t>((run + 1) * layout.inner - 1)] =
        Type<T>::of(kNotFinite[c - 1]);
  }
}

/// A layer whose batch has given moments and sums, in long double. The output gradient of an
/// element is 0 if rounding decides on which side of its kink the activation is.
template <class T>
class LayerCase {
 public:
  using R = Real<T>;
  static constexpr double kCount = 7;
  static constexpr double kEps = 0.125;

  explicit LayerCase(const Row& row)
      : layout(row.layout),
        activation(row.activation),
        fix_gamma(row.number % 4 == 0),
        of_batch(row.number % 6 != 0),
        x(layout, mean_of(row.number), 1, row.number),
        y(layout, 0, 1, row.number + 1),
        dy(layout, 0.1, 1, row.number + 2),
        means(means_near(layout, mean_of(row.number), row.number)),
        m2(parameters(layout, 5, row.number + 3)),
        gamma(as<R>(parameters(layout, row.number % 2 ? 1.5 : -1.5, row.number + 4))),
        beta(as<R>(parameters(layout, -0.5, row.number + 5))),
        sum_dz(parameters(layout, 3, row.number + 6)),
        sum_dz_centered(parameters(layout, -2, 3)) {
    const double least = activation.type == ActType::kElu ? -0.9 * activation.slope : -9;
    for (T& each : y.elements) {
      each = Type<T>::of(std::max(static_cast<double>(Type<T>::value(each)), least));
    }
    apply(row.given);
    for (std::size_t c = 0; c < channels(); ++c) {
      const long double variance = static_cast<long double>(m2[c]) / kCount;
      exact_.push_back({means[c], 1 / std::sqrt(variance + kEps),
                        fix_gamma ? 1 : static_cast<long double>(gamma[c]), beta[c],
                        of_batch ? kCount : 0, sum_dz[c], sum_dz_centered[c]});
      inv_stds.push_back(static_cast<double>(exact_.back().inv_std));
    }
    const long double width = row.given == Given::kAtKink  ? 0
                              : row.given == Given::kSmall ? 1e-6L
                                                           : 1e-3L;
    for (std::size_t i = 0; i < x.elements.size(); ++i) {
      if (std::fabs(z(i)) < width) dy.elements[i] = T{};
    }
  }

  std::size_t channels() const { return means.size(); }
  bool in_place() const { return by == By::kOutputAlone; }
  DzFrom dz_from() const {
    return gluon_syncbn::dz_from(activation.type, by == By::kOutput, in_place());
  }

  // The value of an element, and the sum of its absolute terms. The logarithm turns a relative
  // error into an absolute one, and exp() an absolute error into a relative one. No rounding
  // changes what is not finite.

  long double z(std::size_t i) const { return of(i).z(x.at(i)); }
  /// `shortcut` is y, or 0.
  long double out(std::size_t i, long double shortcut) const {
    return activated(activation, z(i) + shortcut);
  }
  long double size_of_out(std::size_t i, long double shortcut) const {
    return steepest() * (size_of_z(i) + std::fabs(shortcut));
  }
  long double centered(std::size_t i) const {
    return in_place() ? (z_of_output(i) - of(i).beta) / of(i).scale() : x.at(i) - of(i).mean;
  }
  long double size_of_centered(std::size_t i) const {
    if (!std::isfinite(centered(i))) return 0;
    return in_place() ? size_of_z(i) / std::fabs(of(i).scale()) : std::fabs(centered(i));
  }
  long double dz(std::size_t i) const {
    const long double steep =
        by == By::kInput ? steepness(activation, z(i)) : steepness_at(activation, y.at(i));
    return steep == 0 ? 0 : dy.at(i) * steep;
  }
  long double size_of_dz(std::size_t i) const {
    if (activation.type == ActType::kNone) return std::fabs(dz(i));
    if (in_place()) return std::fabs(dy.at(i)) * steepest();
    if (by == By::kOutput && is_flat(i)) return std::fabs(dy.at(i) * y.at(i));  // less the slope
    const long double argument = by == By::kInput ? size_of_z(i) : std::fabs(y.at(i));
    return std::fabs(dz(i)) * (std::isfinite(argument) ? 1 + argument : 1);
  }
  long double dx(std::size_t i) const { return of(i).dx(dz(i), centered(i)); }
  long double size_of_dx(std::size_t i) const {
    // The numbers of a channel are in double, so that data in double is rounded as much.
    const long double rounded = std::is_same_v<T, double> ? 2 : 1;
    return rounded * (std::fabs(of(i).scale()) * size_of_dz(i) +
                      std::fabs(of(i).slope()) * size_of_centered(i) + std::fabs(of(i).constant()));
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
  std::vector<double> inv_stds;
  std::vector<R> gamma;
  std::vector<R> beta;
  std::vector<double> sum_dz;
  std::vector<double> sum_dz_centered;

 private:
  const Channel& of(std::size_t i) const { return exact_[x.channel(i)]; }
  long double steepest() const { return std::max(1.0, activation.slope); }
  /// The size of what z is computed from.
  long double size_of_z(std::size_t i) const {
    const Channel& channel = of(i);
    if (!std::isfinite(in_place() ? y.at(i) : x.at(i))) return 1 + std::fabs(channel.beta);
    if (!in_place()) {
      return std::fabs((x.at(i) - channel.mean) * channel.scale()) + std::fabs(channel.beta);
    }
    const long double at = y.at(i);
    const bool curved = activation.type == ActType::kElu && at < 0 && !is_flat(i);
    const long double steep = curved ? -at / (at + static_cast<long double>(activation.slope)) : 0;
    return std::fabs(z_of_output(i)) + std::fabs(channel.beta) + steep;
  }
  /// Whether no lower z is recoverable from y.
  bool is_flat(std::size_t i) const {
    return activation.type == ActType::kElu &&
           (y.at(i) <= -activation.slope || inverse(activation, y.at(i)) <= kSaturation<T>);
  }
  long double z_of_output(std::size_t i) const {
    return is_flat(i) ? kSaturation<T> : inverse(activation, y.at(i));
  }

  void apply(Given given) {
    const auto fill = [](Data<T>* data, double value) {
      data->elements.assign(data->elements.size(), Type<T>::of(value));
    };
    const std::size_t size = x.elements.size();
    switch (given) {
      case Given::kUsual:
      case Given::kEmpty:
        return;
      case Given::kSmall:
        gamma.assign(channels(), R(1e-3F));
        beta.assign(channels(), R(0));
        for (std::size_t i = 0; i < size; ++i) {
          y.elements[i] = Type<T>::of(1e-3 * static_cast<double>(y.at(i)));
        }
        return;
      case Given::kAtKink:
        x = Data<T>(layout, 3, 0, 1);
        fix_gamma = true;
        of_batch = false;
        for (std::size_t c = 0; c < channels(); ++c) {
          means[c] = static_cast<double>(x.at(c * static_cast<std::size_t>(layout.inner)));
        }
        m2.assign(channels(), kCount * (1 - kEps));
        beta.assign(channels(), R(0));
        fill(&y, 0);
        fill(&dy, 1);
        return;
      case Given::kNotFiniteRunning:
        of_batch = false;
        [[fallthrough]];
      case Given::kNotFinite:
        for (std::size_t i = 0; i < 6; ++i) {
          const std::size_t at = i * (size - 1) / 5;
          x.elements[at] = Type<T>::of(kNotFinite[i / 2]);
          y.elements[at] =
              Type<T>::of(static_cast<double>(activated(activation, kNotFinite[i / 2])));
          if (i % 2) dy.elements[at] = T{};
        }
        return;
      case Given::kDead:
        fill(&x, -50);
        fill(&y, -50);
        for (std::size_t i = 0; i < 3; ++i) dy.elements[20 * i] = Type<T>::of(kNotFinite[i]);
        return;
      case Given::kFlat:
        fill(&y, -activation.slope);
        y.elements[3] = Type<T>::of(-1.002 * activation.slope);  // by rounding
        return;
      case Given::kSpoiledStatistics:
        for (std::size_t c = 1; c <= 3; ++c) {
          means[c] = sum_dz_centered[c] = kNotFinite[c - 1];
          m2[c] = kNotFinite[2];
        }
        [[fallthrough]];
      case Given::kSpoiledX:
        return spoil(&x);
      case Given::kSpoiledDy:
        return spoil(&dy);
    }
  }

  std::vector<Channel> exact_;
};

}  // namespace gluon_syncbn::tests

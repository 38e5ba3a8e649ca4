#ifndef GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_LAYER_CASE_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_LAYER_CASE_H_

// What a layer makes of given statistics and sums, by its definition, for the kernels of CPUs and
// of GPUs: with all activations, with a shortcut and in place.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "common/layout.h"
#include "common/real.h"
#include "common/write_mode.h"
#include "norm/activation.h"
#include "support/activations.h"
#include "support/arrays.h"
#include "support/layouts.h"
#include "support/outputs.h"

namespace gluon_syncbn::tests {

/// What tells dz: the input, the output, or, in place, the output alone.
enum class By { kInput, kOutput, kOutputAlone };

/// A layer whose batch has given moments and sums, in long double. Gradients are 0 where rounding
/// decides on which side of its kink the activation is. Any output will do where ELU is not flat.
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
  long double steepest() const { return std::max(1.0, activation.slope); }

  long double inv_std(std::size_t c) const {
    return 1 / std::sqrt(static_cast<long double>(m2[c]) / kCount + kEps);
  }
  std::vector<double> inv_stds() const {
    std::vector<double> values;
    for (std::size_t c = 0; c < channels(); ++c) values.push_back(static_cast<double>(inv_std(c)));
    return values;
  }
  long double factor(std::size_t c) const {
    return (fix_gamma ? 1 : static_cast<long double>(gamma[c])) * inv_std(c);
  }
  /// dx is factor * dz + slope * (x - mean) + constant.
  long double slope(std::size_t c) const {
    return share(c) * sum_dz_centered[c] * inv_std(c) * inv_std(c);
  }
  long double constant(std::size_t c) const { return share(c) * sum_dz[c]; }

  // Of an element, with the sum of its absolute terms. The logarithm makes an absolute error of a
  // relative one, and exp() a relative error of an absolute one.

  long double z(std::size_t i) const {
    const std::size_t c = x.channel(i);
    return (x.at(i) - means[c]) * factor(c) + beta[c];
  }
  long double size_of_z(std::size_t i) const {
    const std::size_t c = x.channel(i);
    const long double shift = std::fabs(static_cast<long double>(beta[c]));
    if (!in_place()) return std::fabs((x.at(i) - means[c]) * factor(c)) + shift;
    const long double steep = activation.type == ActType::kElu ? 10 : 0;
    return std::fabs(inverse(activation, y.at(i))) + shift + steep;
  }
  /// `shortcut` is y, or 0.
  long double out(std::size_t i, long double shortcut) const {
    return activated(activation, z(i) + shortcut);
  }
  long double size_of_out(std::size_t i, long double shortcut) const {
    return steepest() * (size_of_z(i) + std::fabs(shortcut));
  }
  long double centered(std::size_t i) const {
    const std::size_t c = x.channel(i);
    if (!in_place()) return x.at(i) - means[c];
    return (inverse(activation, y.at(i)) - beta[c]) / factor(c);
  }
  long double size_of_centered(std::size_t i) const {
    if (!in_place()) return std::fabs(centered(i));
    return size_of_z(i) / std::fabs(factor(x.channel(i)));
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
  long double dx(std::size_t i) const {
    const std::size_t c = x.channel(i);
    return factor(c) * dz(i) + slope(c) * centered(i) + constant(c);
  }
  long double size_of_dx(std::size_t i) const {
    const std::size_t c = x.channel(i);
    // The numbers of a channel are in double: of data in double they are rounded as much.
    const long double rounded = std::is_same_v<T, double> ? 2 : 1;
    return rounded * (std::fabs(factor(c)) * size_of_dz(i) +
                      std::fabs(slope(c)) * size_of_centered(i) + std::fabs(constant(c)));
  }

  Layout layout;
  Activation activation;
  bool fix_gamma;
  bool of_batch;  ///< or of running statistics, whose gradient has no part in dx
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
  long double share(std::size_t c) const { return of_batch ? -factor(c) / kCount : 0; }
};

/// Calls try_case(LayerCase*, number) for an activation on every layout, in turn.
template <class T, class Try>
void for_each_case(const std::vector<Layout>& layouts, const Try& try_case) {
  for_each_layout(layouts, [&](const Layout& layout, std::uint32_t number) {
    const Activation& activation = kActivationsAndNone[number * 5 / 3 % 6];
    CAPTURE(static_cast<int>(activation.type));
    CAPTURE(activation.slope);
    LayerCase<T> given(layout, activation, number);
    try_case(&given, number);
  });
}

/// Calls check() for all that may tell dz.
template <class T, class Check>
void for_each_by(LayerCase<T>* given, const Check& check) {
  for (const By by : {By::kInput, By::kOutput, By::kOutputAlone}) {
    if (by == By::kOutputAlone && given->activation.type == ActType::kRelu) continue;
    CAPTURE(static_cast<int>(by));
    given->by = by;
    check();
  }
}

// In what follows `phases` computes for `given` on a device:
//   normalize(write, adds_shortcut, &y)
//   gradient_sums(), which gives those of dz, and behind them those of dz * (x - mean)
//   input_gradient(write, &dx)
//   shortcut_gradient(write, &dz), where the output tells dz

template <class T, class Phases>
void check_outputs(const LayerCase<T>& given, Phases* phases) {
  for (const bool add : {false, true}) {
    const auto shortcut = [&](std::size_t i) { return add ? given.y.at(i) : 0; };
    check_output(
        given.x, [&](WriteMode write, std::vector<T>* y) { phases->normalize(write, add, y); },
        [&](std::size_t i) { return given.out(i, shortcut(i)); },
        [&](std::size_t i) { return given.size_of_out(i, shortcut(i)); });
  }
}

/// `unit` is the greatest relative error of a term, or of adding it.
template <class T, class Phases>
void check_gradient_sums(const LayerCase<T>& given, Phases* phases, long double unit) {
  const std::vector<double> found = phases->gradient_sums();
  std::vector<long double> first(given.channels()), second(first), first_size(first),
      second_size(first);
  for (std::size_t i = 0; i < given.x.elements.size(); ++i) {
    const std::size_t c = given.x.channel(i);
    first[c] += given.dz(i);
    second[c] += given.dz(i) * given.centered(i);
    first_size[c] += given.size_of_dz(i);
    // The rest of the mean is taken off in the end, exactly.
    second_size[c] += given.size_of_dz(i) * given.size_of_centered(i) +
                      0x1p-24L * std::fabs(given.means[c] * given.dz(i));
  }
  for (std::size_t c = 0; c < given.channels(); ++c) {
    REQUIRE(std::fabs(found[c] - first[c]) <= unit * first_size[c]);
    REQUIRE(std::fabs(found[given.channels() + c] - second[c]) <= unit * second_size[c]);
  }
}

/// `input_gradient` is that of phases, or another that should give the same.
template <class T, class Kernel>
void check_dx(const LayerCase<T>& given, const Kernel& input_gradient) {
  check_output(
      given.x, input_gradient, [&](std::size_t i) { return given.dx(i); },
      [&](std::size_t i) { return given.size_of_dx(i); });
}
template <class T, class Kernel>
void check_dshortcut(const LayerCase<T>& given, const Kernel& shortcut_gradient) {
  check_output(
      given.x, shortcut_gradient, [&](std::size_t i) { return given.dz(i); },
      [&](std::size_t i) { return given.size_of_dz(i); });
}

template <class T, class Phases>
void check_gradients(const LayerCase<T>& given, Phases* phases) {
  check_dx(given, [&](WriteMode write, std::vector<T>* dx) { phases->input_gradient(write, dx); });
  if (given.by != By::kOutput) return;
  check_dshortcut(
      given, [&](WriteMode write, std::vector<T>* dz) { phases->shortcut_gradient(write, dz); });
}

/// Constant channels that are normalized to 0, where the slope is that from below; dx is dz.
template <class T>
LayerCase<T> case_at_kink(const Layout& layout, const Activation& activation) {
  LayerCase<T> given(layout, activation, 1);
  given.x = Data<T>(layout, 3, 0, 1);
  given.fix_gamma = true;
  given.of_batch = false;
  for (std::size_t c = 0; c < given.channels(); ++c) {
    given.means[c] = static_cast<double>(given.x.at(c * static_cast<std::size_t>(layout.inner)));
    given.m2[c] = given.kCount * (1 - given.kEps);
    given.beta[c] = 0;
  }
  given.y.elements.assign(given.x.elements.size(), T{});
  given.dy.elements.assign(given.x.elements.size(), Type<T>::of(1));
  return given;
}

/// An infinity, a negative one and what is not a number among outputs, which are alone in that,
/// and, where ReLU cuts all off, among gradients. make_phases(given) computes.
template <class T, class MakePhases>
void check_not_finite(const Layout& layout, const MakePhases& make_phases) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Activation& activation : kActivationsAndNone) {
    LayerCase<T> given(layout, activation, 3);  // with a gamma above 0
    std::vector<T>& x = given.x.elements;
    x[0] = Type<T>::of(infinity);
    x[20] = Type<T>::of(-infinity);
    x.back() = Type<T>::of(std::numeric_limits<double>::quiet_NaN());
    std::vector<T> y(x.size());
    make_phases(given).normalize(WriteMode::kAssign, false, &y);
    CHECK(Type<T>::value(y[0]) == infinity);
    CHECK(Type<T>::value(y[20]) ==
          Type<T>::value(Type<T>::of(static_cast<double>(activated(activation, -infinity)))));
    CHECK(std::isnan(Type<T>::value(y.back())));
    for (std::size_t i = 1; i + 1 < y.size(); ++i) {
      if (i != 20) CHECK(std::isfinite(Type<T>::value(y[i])));
    }
    if (activation.type != ActType::kRelu) continue;
    given.by = By::kOutput;
    given.dy = given.x;
    given.x = given.y = Data<T>(layout, -50, 1, 1);
    auto phases = make_phases(given);
    phases.shortcut_gradient(WriteMode::kAssign, &y);
    for (const T& element : y) CHECK(Type<T>::value(element) == 0);
    phases.input_gradient(WriteMode::kAssign, &y);
    for (const T& element : y) CHECK(std::isfinite(Type<T>::value(element)));
  }
}

/// In place, where ELU is flat, also by rounding, and what is not finite.
template <class T, class MakePhases>
void check_flat(const Layout& layout, const MakePhases& make_phases) {
  LayerCase<T> given(layout, {ActType::kElu, 0.5}, 1);  // of a batch, with its gamma
  given.by = By::kOutputAlone;
  std::vector<T>& y = given.y.elements;
  y.assign(y.size(), Type<T>::of(-0.5));
  y[3] = Type<T>::of(-0.501);
  for (const double sum : make_phases(given).gradient_sums()) CHECK(std::isfinite(sum));
  given.dy.elements.assign(given.dy.elements.size(), T{});
  y[20] = Type<T>::of(std::numeric_limits<double>::quiet_NaN());
  y[21] = Type<T>::of(std::numeric_limits<double>::infinity());
  std::vector<T> dx(y.size());
  make_phases(given).input_gradient(WriteMode::kAssign, &dx);
  // No further below 0 than the dtype tells.
  const auto expected = static_cast<double>(
      given.constant(0) + given.slope(0) * (kSaturation<T> - given.beta[0]) / given.factor(0));
  for (std::size_t i = 0; i < dx.size(); ++i) {
    CAPTURE(i);
    const auto found = static_cast<double>(Type<T>::value(dx[i]));
    if (i == 20 || i == 21) {
      CHECK((i == 20 ? std::isnan(found) : std::isinf(found)));
    } else {
      CHECK(found == doctest::Approx(expected).epsilon(1e-3));
    }
  }
}

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_LAYER_CASE_H_

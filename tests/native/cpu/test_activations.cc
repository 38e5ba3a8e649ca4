#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "common/half.h"
#include "common/layout.h"
#include "cpu/kernels.h"
#include "cpu/simd/isa.h"
#include "norm/activation.h"
#include "norm/moments.h"
#include "support/activations.h"
#include "support/arrays.h"
#include "support/isa_cases.h"
#include "support/layouts.h"
#include "support/outputs.h"
#include "support/values.h"
#include "support/whole_arrays.h"

namespace gluon_syncbn::tests {
namespace {

/// What tells dz: the input, the output, or, in place, the output alone.
enum class By { kInput, kOutput, kOutputAlone };

/// Numbers of a case: a normalization, and gradients that are 0 where rounding decides on which
/// side of its kink an activation is. Any output will do; in place it is where ELU is not flat.
template <class T>
struct Case {
  Data<T> x;
  Data<T> y;  // and the shortcut
  Data<T> dy;
  cpu::Normalization n;
  By by = By::kInput;

  Case(const Layout& layout, const Activation& activation, double mean, std::uint32_t seed)
      : x(layout, mean, 1, seed),
        y(layout, 0, 1, seed + 1),
        dy(layout, 0.1, 1, seed + 2),
        n{means_near(layout, mean, seed), parameters(layout, 1, seed + 3),
          parameters(layout, -0.5, seed + 4), activation} {
    for (std::size_t i = 0; i < x.elements.size(); ++i) {
      if (std::fabs(z(i)) < 1e-3L) dy.elements[i] = T{};
      if (activation.type != ActType::kElu) continue;
      const auto least = static_cast<long double>(-0.9 * activation.slope);
      y.elements[i] = Type<T>::of(static_cast<double>(std::max(y.at(i), least)));
    }
  }

  const Activation& act() const { return n.activation; }
  bool in_place() const { return by == By::kOutputAlone; }
  const T* input() const { return in_place() ? nullptr : x.data(); }
  cpu::Gate<T> gate() const {
    if (by == By::kInput) return {act(), nullptr, n.scale, n.shift};
    if (in_place()) return {act(), y.data(), n.scale, n.shift};
    return {act(), y.data(), {}, {}};
  }

  long double scaled(std::size_t i) const {
    const std::size_t c = x.channel(i);
    return (x.at(i) - n.mean[c]) * n.scale[c];
  }
  long double z(std::size_t i) const { return scaled(i) + n.shift[x.channel(i)]; }
  /// Sum of the absolute terms of z.
  long double magnitude(std::size_t i) const {
    return std::fabs(scaled(i)) + std::fabs(n.shift[x.channel(i)]);
  }
  long double dz(std::size_t i) const {
    return dy.at(i) * (by == By::kInput ? steepness(act(), z(i)) : steepness_at(act(), y.at(i)));
  }
  /// Of the terms of dz. exp() makes a relative error of an absolute one.
  long double size_of_dz(std::size_t i) const {
    if (act().type == ActType::kNone) return std::fabs(dz(i));
    return std::fabs(dy.at(i)) *
           (steepest() + (by == By::kInput ? magnitude(i) : std::fabs(y.at(i))));
  }
  long double steepest() const { return std::max(1.0, act().slope); }
  long double centered(std::size_t i) const {
    const std::size_t c = x.channel(i);
    return in_place() ? (inverse(act(), y.at(i)) - n.shift[c]) * n.scale[c] : x.at(i) - n.mean[c];
  }
  /// The logarithm makes an absolute error of a relative one.
  long double size_of_centered(std::size_t i) const {
    if (!in_place()) return std::fabs(centered(i));
    const std::size_t c = x.channel(i);
    const long double z = std::fabs(inverse(act(), y.at(i)));
    return (10 + z + std::fabs(n.shift[c])) * std::fabs(n.scale[c]);
  }
};

/// Calls try_case(Case) for an activation on every layout, in turn.
template <class T, class Try>
void for_each_case(const Try& try_case) {
  std::uint32_t seed = 0;
  for_each_layout([&](const Layout& layout, double mean) {
    const Activation& activation = kActivationsAndNone[++seed * 5 / 3 % 6];
    CAPTURE(static_cast<int>(activation.type));
    CAPTURE(activation.slope);
    try_case(Case<T>(layout, activation, mean, seed));
  });
}

/// The same for all that may tell dz.
template <class T, class Try>
void for_each_backward(const Try& try_case) {
  for_each_case<T>([&](Case<T> given) {
    for (const By by : {By::kInput, By::kOutput, By::kOutputAlone}) {
      if (by == By::kOutputAlone && given.act().type == ActType::kRelu) continue;
      CAPTURE(static_cast<int>(by));
      given.by = by;
      try_case(given);
    }
  });
}

}  // namespace

TEST_CASE_TEMPLATE("activations: outputs, with a shortcut and without", Given, GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for_each_case<T>([](const Case<T>& given) {
    for (const bool add : {false, true}) {
      const auto shortcut = [&](std::size_t i) { return add ? given.y.at(i) : 0; };
      check_output(
          given.x,
          [&](WriteMode write, std::vector<T>* out) {
            cpu::normalize(given.x.data(), given.x.layout, given.n, write, out->data(),
                           add ? given.y.data() : nullptr);
          },
          [&](std::size_t i) { return activated(given.act(), given.z(i) + shortcut(i)); },
          [&](std::size_t i) {
            return given.steepest() * (given.magnitude(i) + std::fabs(shortcut(i)));
          });
    }
  });
}

TEST_CASE_TEMPLATE("activations: gradient sums", Given, GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for_each_backward<T>([](const Case<T>& given) {
    const GradientSums sums = cpu::gradient_sums(given.dy.data(), given.input(), given.x.layout,
                                                 given.n.mean, given.gate());
    std::vector<long double> first(given.n.mean.size()), second(first), first_size(first),
        second_size(first);
    for (std::size_t i = 0; i < given.x.elements.size(); ++i) {
      const std::size_t c = given.x.channel(i);
      first[c] += given.dz(i);
      second[c] += given.dz(i) * given.centered(i);
      first_size[c] += given.size_of_dz(i);
      second_size[c] += given.size_of_dz(i) * given.size_of_centered(i);
    }
    for (std::size_t c = 0; c < first.size(); ++c) {
      REQUIRE(std::fabs(sums.dy[c] - first[c]) <= 1e-14L * first_size[c]);
      REQUIRE(std::fabs(sums.dy_centered[c] - second[c]) <= 1e-14L * second_size[c]);
    }
  });
}

TEST_CASE_TEMPLATE("activations: gradients of input and shortcut", Given, GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for_each_backward<T>([](const Case<T>& given) {
    const Layout& layout = given.x.layout;
    const cpu::InputGradient g{given.n.mean, parameters(layout, 1, 7), parameters(layout, -0.2, 8),
                               parameters(layout, 0.1, 9)};
    check_output(
        given.x,
        [&](WriteMode write, std::vector<T>* dx) {
          cpu::input_gradient(given.dy.data(), given.input(), layout, g, write, dx->data(),
                              given.gate());
        },
        [&](std::size_t i) {
          const std::size_t c = given.x.channel(i);
          return g.dy_factor[c] * given.dz(i) + g.x_factor[c] * given.centered(i) + g.constant[c];
        },
        [&](std::size_t i) {
          const std::size_t c = given.x.channel(i);
          return std::fabs(g.dy_factor[c]) * given.size_of_dz(i) +
                 std::fabs(g.x_factor[c]) * given.size_of_centered(i) + std::fabs(g.constant[c]);
        });
    if (given.by != By::kOutput) return;
    check_output(
        given.x,
        [&](WriteMode write, std::vector<T>* dz) {
          cpu::shortcut_gradient(given.dy.data(), layout, write, dz->data(), given.gate());
        },
        [&](std::size_t i) { return given.dz(i); },
        [&](std::size_t i) { return given.size_of_dz(i); });
  });
}

TEST_CASE_TEMPLATE("activations: at 0 the slope is that from below", Given, GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for (const Layout& layout : {Layout{5, 6, 1}, Layout{2, 6, 49}, Layout{33, 5, 17},
                               Layout{1, 3, 2049}, Layout{300, 1, 1}, Layout{1, 1, 1}}) {
    const auto channels = static_cast<std::size_t>(layout.channels);
    const Data<T> x(layout, 3, 0, 1);  // constant channels
    std::vector<double> mean;
    for (std::size_t c = 0; c < channels; ++c) {
      mean.push_back(static_cast<double>(x.at(c * static_cast<std::size_t>(layout.inner))));
    }
    const std::vector<double> ones(channels, 1), zeros(channels);
    const std::vector<T> dy(x.elements.size(), Type<T>::of(1));
    for (const Activation& act : kActivations) {
      std::vector<T> y(x.elements.size()), by_input(y), by_output(y), of_shortcut(y);
      cpu::normalize(x.data(), layout, {mean, ones, zeros, act}, WriteMode::kAssign, y.data());
      const cpu::InputGradient g{mean, ones, zeros, zeros};
      const cpu::Gate<T> input{act, nullptr, ones, zeros}, output{act, y.data(), {}, {}};
      cpu::input_gradient(dy.data(), x.data(), layout, g, WriteMode::kAssign, by_input.data(),
                          input);
      cpu::input_gradient(dy.data(), x.data(), layout, g, WriteMode::kAssign, by_output.data(),
                          output);
      cpu::shortcut_gradient(dy.data(), layout, WriteMode::kAssign, of_shortcut.data(), output);
      const long double slope = Type<T>::value(Type<T>::of(act.slope));
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < y.size(); ++i) {
        if (Type<T>::value(y[i]) != 0) ++wrong;
        for (const T* gradient : {&by_input[i], &by_output[i], &of_shortcut[i]}) {
          if (Type<T>::value(*gradient) != slope) ++wrong;
        }
      }
      CHECK(wrong == 0);
      const GradientSums sums = cpu::gradient_sums(dy.data(), x.data(), layout, mean, input);
      for (const double sum : sums.dy) {
        CHECK(sum == doctest::Approx(act.slope * static_cast<double>(layout.count())));
      }
    }
  }
}

TEST_CASE_TEMPLATE("activations: what is not finite", Given, GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Layout layout{1, 1, 64};
  Data<T> x(layout, 0, 1, 1);
  x.elements[0] = Type<T>::of(infinity);
  x.elements[20] = Type<T>::of(-infinity);
  x.elements[63] = Type<T>::of(nan);
  for (const Activation& act : kActivations) {
    std::vector<T> y(64);
    cpu::normalize(x.data(), layout, {{0}, {1}, {0}, act}, WriteMode::kAssign, y.data());
    CHECK(Type<T>::value(y[0]) == infinity);
    CHECK(Type<T>::value(y[20]) == Type<T>::value(Type<T>::of(static_cast<double>(activated(
                                       act, -std::numeric_limits<long double>::infinity())))));
    CHECK(std::isnan(Type<T>::value(y[63])));
  }
  // What ReLU cuts off is gone even where it is not finite.
  std::vector<T> dz(64);
  const Data<T> below(layout, -5, 1, 1);
  cpu::shortcut_gradient(x.data(), layout, WriteMode::kAssign, dz.data(),
                         cpu::Gate<T>{{ActType::kRelu, 0}, below.data(), {}, {}});
  for (const T& element : dz) CHECK(Type<T>::value(element) == 0);
}

}  // namespace gluon_syncbn::tests

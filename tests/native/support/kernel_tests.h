#pragma once

// The tests of the kernels, for CPUs and for GPUs. Their parameter `Kernels` has
//
//   Element                    the type of data
//   kUnitOfMoments             the greatest relative error of a deviation in moments
//   kUnitOfSums                the same of a term of gradient_sums(), or of adding it
//   kUnitOfEqualSums           the same if all terms are equal, and so are their errors
//   kExactMeans                whether the means of constant channels are exact
//   layouts()                  the layouts to try
//   kMostElements              the size of the largest other layouts
//   moments(x, number)         all means, and after them all M2; `number` says how arrays lie
//   phases(given, number)      the phases of a LayerCase:
//     normalize(write, adds_shortcut, &y)
//     gradient_sums()          all sums of dz, and after them all sums of dz * (x - mean)
//     input_gradient(write, &dx)
//     shortcut_gradient(write, &dz), if dz is computed from the output
//     kept()                   their other results
//   in_all_orders(check)       calls check() for each order in which threads may run

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "common/layout.h"
#include "norm/activation.h"
#include "norm/per_channel.h"
#include "support/arrays.h"
#include "support/layer_case.h"
#include "support/oracle.h"
#include "support/values.h"

namespace gluon_syncbn::tests {

/// Runs and columns of few channels and of many. Layouts of several images have at most `most`
/// elements, because larger arrays of long runs would test nothing more.
inline std::vector<Layout> layouts_of(const std::vector<std::int64_t>& inners,
                                      const std::vector<std::int64_t>& outers, std::int64_t most) {
  std::vector<Layout> layouts;
  for (const std::int64_t inner : inners) {
    for (const std::int64_t channels : {1, 3, 65, 257}) {
      for (const std::int64_t outer : outers) {
        if (outer == 1 || outer * channels * inner <= most) {
          layouts.push_back({outer, channels, inner});
        }
      }
    }
  }
  return layouts;
}

/// Calls try_layout(layout, number) for all layouts, which are counted from 1.
template <class Try>
void for_each_layout(const std::vector<Layout>& layouts, const Try& try_layout) {
  std::uint32_t number = 0;
  for (const Layout& layout : layouts) {
    CAPTURE(layout.outer);
    CAPTURE(layout.channels);
    CAPTURE(layout.inner);
    ++number;
    CAPTURE(number);
    try_layout(layout, number);
  }
}

/// Calls kernel(write, &out) for both ways of writing. Checks `out` against reference(i). The error
/// may be as large as magnitude(i), the sum of its absolute terms, allows.
template <class T, class Kernel, class Value, class Magnitude>
void check_output(const Data<T>& x, const Kernel& kernel, const Value& reference,
                  const Magnitude& magnitude) {
  const Data<T> before(x.layout, 2, 1, 77);
  // A mean in two floats is exact to twice their bits.
  const long double split = std::is_same_v<T, double> ? 0 : 2e4L * 0x1p-48L;
  Values exact, size;
  for (std::size_t i = 0; i < before.elements.size(); ++i) {
    exact.push_back(reference(i));
    size.push_back(magnitude(i));
  }
  for (const WriteMode write : {WriteMode::kAssign, WriteMode::kAdd}) {
    std::vector<T> out = before.elements;
    kernel(write, &out);
    const auto added = [&](std::size_t i) { return write == WriteMode::kAdd ? before.at(i) : 0; };
    const auto expected = [&](std::size_t i) { return exact[i] + added(i); };
    check_close(
        write == WriteMode::kAdd ? "sum" : "output", out.size(),
        [&](std::size_t i) { return Type<T>::value(out[i]); }, expected,
        [&](std::size_t i) {
          return 6 * Type<T>::kUnit * (size[i] + std::fabs(added(i))) + split +
                 Type<T>::storing(expected(i));
        });
  }
}

/// Checks the means and M2 of all channels in `found`, which are sums merged in double. Deviations
/// may have the relative error `unit`, and means the error `mean_unit`.
template <class T>
void check_moments(const Data<T>& x, const std::vector<double>& found, long double unit,
                   long double mean_unit) {
  const ExactMoments exact({{x.layout}, {x.values()}});
  const auto count = static_cast<long double>(x.layout.count());
  REQUIRE(found.size() == 2 * exact.mean.size());
  // Half data of a large mean may have no deviations at all.
  const auto deviation = [&](std::size_t c) { return std::sqrt(exact.m2[c] / count); };
  const auto in_double = [&](std::size_t c) {
    return 4e-15L * (std::fabs(exact.mean[c]) + deviation(c));
  };
  check_close(
      "mean", exact.mean.size(), [&](std::size_t c) { return found[c]; },
      [&](std::size_t c) { return exact.mean[c]; },
      [&](std::size_t c) { return 4 * mean_unit * deviation(c) + in_double(c); });
  check_close(
      "M2", exact.m2.size(), [&](std::size_t c) { return found[exact.mean.size() + c]; },
      [&](std::size_t c) { return exact.m2[c]; },
      [&](std::size_t c) {
        return count * deviation(c) * (8 * unit * deviation(c) + in_double(c)) +
               count * in_double(c) * in_double(c);
      });
}

template <class T>
void check_moments(const Data<T>& x, const std::vector<double>& found, long double unit) {
  check_moments(x, found, unit, unit);
}

/// Checks the moments of constant channels.
template <class T>
void check_constant(const Data<T>& x, const std::vector<double>& found) {
  const auto channels = static_cast<std::size_t>(x.layout.channels);
  REQUIRE(found.size() == 2 * channels);
  for (std::size_t c = 0; c < channels; ++c) {
    REQUIRE(found[c] == x.at(c * static_cast<std::size_t>(x.layout.inner)));
    REQUIRE(found[channels + c] == 0);
  }
}

/// Calls try_case(LayerCase*, number) for each layout, with one activation after the other.
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

/// Calls check() for each way to compute dz.
template <class T, class Check>
void for_each_by(LayerCase<T>* given, const Check& check) {
  for (const By by : {By::kInput, By::kOutput, By::kOutputAlone}) {
    if (by == By::kOutputAlone && given->activation.type == ActType::kRelu) continue;
    CAPTURE(static_cast<int>(by));
    given->by = by;
    check();
  }
}

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

/// Checks the sums. `unit` is the greatest relative error of a term, or of adding it.
template <class T, class Phases>
void check_gradient_sums(const LayerCase<T>& given, Phases* phases, long double unit) {
  const std::vector<double> found = phases->gradient_sums();
  Values first(given.channels()), second(first), first_size(first), second_size(first);
  for (std::size_t i = 0; i < given.x.elements.size(); ++i) {
    const std::size_t c = given.x.channel(i);
    first[c] += given.dz(i);
    second[c] += given.dz(i) * given.centered(i);
    first_size[c] += given.size_of_dz(i);
    // The kernels subtract the rest of the mean exactly, at the end.
    second_size[c] += given.size_of_dz(i) * given.size_of_centered(i) +
                      0x1p-24L * std::fabs(given.means[c] * given.dz(i));
  }
  const auto check = [&](const std::string& of, std::size_t begin, const Values& expected,
                         const Values& size) {
    check_close(
        "sum of " + of, expected.size(), [&](std::size_t c) { return found[begin + c]; },
        [&](std::size_t c) { return expected[c]; }, [&](std::size_t c) { return unit * size[c]; });
  };
  check("dz", 0, first, first_size);
  check("dz * (x - mean)", given.channels(), second, second_size);
}

/// Checks `input_gradient`, which is the one of phases() or another that should give the same
/// result.
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

/// Checks the sums and all gradients, for each way to compute dz.
template <class T, class Phases>
void check_gradients(LayerCase<T>* given, Phases* phases, long double unit) {
  for_each_by(given, [&] {
    check_gradient_sums(*given, phases, unit);
    check_dx(*given,
             [&](WriteMode write, std::vector<T>* dx) { phases->input_gradient(write, dx); });
    if (given->by != By::kOutput) return;
    check_dshortcut(
        *given, [&](WriteMode write, std::vector<T>* dz) { phases->shortcut_gradient(write, dz); });
  });
}

/// Returns a case of constant channels. They are normalized to 0, where the derivative is the one
/// from below, and dx is dz.
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

/// Checks outputs with infinities and NaN among others, which must stay finite. Checks that ELU
/// keeps a NaN in gradients, and gradients of such values where ReLU is 0.
template <class T, class Kernels>
void check_not_finite(const Layout& layout, Kernels* kernels) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Activation& activation : kActivationsAndNone) {
    LayerCase<T> given(layout, activation, 3);  // gamma is above 0
    std::vector<T>& x = given.x.elements;
    x[0] = Type<T>::of(infinity);
    x[20] = Type<T>::of(-infinity);
    x.back() = Type<T>::of(std::numeric_limits<double>::quiet_NaN());
    std::vector<T> y(x.size());
    kernels->phases(given).normalize(WriteMode::kAssign, false, &y);
    CHECK(Type<T>::value(y[0]) == infinity);
    CHECK(Type<T>::value(y[20]) ==
          Type<T>::value(Type<T>::of(static_cast<double>(activated(activation, -infinity)))));
    CHECK(std::isnan(Type<T>::value(y.back())));
    for (std::size_t i = 1; i + 1 < y.size(); ++i) {
      if (i != 20) CHECK(std::isfinite(Type<T>::value(y[i])));
    }
    if (activation.type == ActType::kElu) {
      CHECK(std::isnan(kernels->phases(given).gradient_sums().front()));
      LayerCase<T> by_output(layout, activation, 3);
      by_output.by = By::kOutput;
      by_output.y.elements.back() = x.back();
      std::vector<T> dz(x.size());
      kernels->phases(by_output).shortcut_gradient(WriteMode::kAssign, &dz);
      CHECK(std::isnan(Type<T>::value(dz.back())));
    }
    if (activation.type != ActType::kRelu) continue;
    given.by = By::kOutput;
    given.dy = given.x;
    given.x = given.y = Data<T>(layout, -50, 1, 1);
    auto phases = kernels->phases(given);
    phases.shortcut_gradient(WriteMode::kAssign, &y);
    for (const T& element : y) CHECK(Type<T>::value(element) == 0);
    phases.input_gradient(WriteMode::kAssign, &y);
    for (const T& element : y) CHECK(std::isfinite(Type<T>::value(element)));
  }
}

/// Checks dx of running statistics. It depends on the input by the slope of the activation alone,
/// so inputs that are not finite do not spoil it.
template <class T, class Kernels>
void check_running_statistics(const Layout& layout, Kernels* kernels) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Activation& activation : kActivationsAndNone) {
    CAPTURE(static_cast<int>(activation.type));
    const bool is_plain = activation.type == ActType::kNone;
    LayerCase<T> given(layout, activation, 3);  // gamma is above 0
    given.of_batch = false;
    for_each_by(&given, [&] {
      for (const double value : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
        CAPTURE(value);
        if (std::isnan(value) && !is_plain) continue;
        const double slope = value > 0 || is_plain              ? 1
                             : activation.type == ActType::kElu ? 0
                                                                : activation.slope;
        given.x.elements[20] = Type<T>::of(value);
        given.y.elements[20] = Type<T>::of(static_cast<double>(activated(activation, value)));
        for (const double dy : {0.5, 0.0}) {
          given.dy.elements[20] = Type<T>::of(dy);
          std::vector<T> dx(given.x.elements.size());
          kernels->phases(given).input_gradient(WriteMode::kAssign, &dx);
          const auto expected =
              static_cast<double>(given.channel(given.x.channel(20)).scale()) * dy * slope;
          CHECK(static_cast<double>(Type<T>::value(dx[20])) ==
                doctest::Approx(expected).epsilon(1e-3));
        }
      }
    });
  }
}

/// Checks inputs in place where ELU is flat, also by rounding, and inputs that are not finite.
template <class T, class Kernels>
void check_flat(const Layout& layout, Kernels* kernels) {
  LayerCase<T> given(layout, {ActType::kElu, 0.5}, 1);  // statistics of the batch, and a gamma
  given.by = By::kOutputAlone;
  std::vector<T>& y = given.y.elements;
  y.assign(y.size(), Type<T>::of(-0.5));
  y[3] = Type<T>::of(-0.501);
  for (const double sum : kernels->phases(given).gradient_sums()) CHECK(std::isfinite(sum));
  given.dy.elements.assign(given.dy.elements.size(), T{});
  y[20] = Type<T>::of(std::numeric_limits<double>::quiet_NaN());
  y[21] = Type<T>::of(std::numeric_limits<double>::infinity());
  std::vector<T> dx(y.size());
  kernels->phases(given).input_gradient(WriteMode::kAssign, &dx);
  // z is no further below 0 than the dtype can represent.
  const Channel channel = given.channel(0);
  const auto expected =
      static_cast<double>(channel.dx(0, (kSaturation<T> - channel.beta) / channel.scale()));
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

// The tests.

/// Checks equal elements whose squares are too large for double.
template <class Kernels>
void test_huge_means(Kernels* kernels) {
  for (const Layout& layout : {Layout{1, 3, 1}, Layout{2, 3, 1}, Layout{3, 5, 7},
                               Layout{2000, 3, 1}, Layout{2, 3, 49}, Layout{1, 2, 9973}}) {
    CAPTURE(layout.outer);
    CAPTURE(layout.inner);
    Data<double> x(layout, 0, 1, 3);
    for (double& element : x.elements) element = -3e200;
    check_constant(x, kernels->moments(x, 0));
  }
}

template <class Kernels>
void test_moments(Kernels* kernels) {
  using T = typename Kernels::Element;
  auto layouts = kernels->layouts();
  const Layout large{100001, 3, 1};  // parts of which a CPU merges
  if (large.count() * large.channels <= Kernels::kMostElements) layouts.push_back(large);
  for_each_layout(layouts, [&](const Layout& layout, std::uint32_t number) {
    const Data<T> x(layout, mean_of(number), 1, 3);
    check_moments(x, kernels->moments(x, number), Kernels::kUnitOfMoments);
    const Data<T> constant(layout, mean_of(number), 0, 3);
    if (Kernels::kExactMeans) {
      check_constant(constant, kernels->moments(constant, number));
    } else {
      check_moments(constant, kernels->moments(constant, number), 0);
    }
  });
  if constexpr (std::is_same_v<T, double>) test_huge_means(kernels);
}

/// Checks moments if the first values, with which kernels guess the mean, are far from it, and if
/// the mean moves.
template <class Kernels>
void test_outliers(Kernels* kernels) {
  using T = typename Kernels::Element;
  for (const Layout& layout :
       {Layout{6, 3, 5000}, Layout{2, 3, 5000}, Layout{2, 3, 4999}, Layout{40, 3, 49},
        Layout{9000, 3, 1}, Layout{700, 131, 1}, Layout{200, 3, 7}, Layout{500, 5, 3},
        Layout{2, 65, 9}, Layout{5, 64, 14}, Layout{20, 3, 1}}) {
    if (layout.count() * layout.channels > Kernels::kMostElements) continue;
    CAPTURE(layout.outer);
    CAPTURE(layout.inner);
    const auto inner = static_cast<std::size_t>(layout.inner);
    const Data<T> plain(layout, 3, 1, 11);
    const std::size_t row = plain.elements.size() / static_cast<std::size_t>(layout.outer);
    // Channel 0 begins with values that are far from its mean, and channel 1 climbs.
    Data<T> moving = plain;
    // One outlier, or a ninth of channel 1.
    Data<T> one = plain;
    for (std::size_t c = 0; c < 3; ++c) one.elements[c * inner] = Type<T>::of(1e4);
    Data<T> many = one;
    for (std::size_t i = 0; i < plain.elements.size(); ++i) {
      const std::size_t c = plain.channel(i);
      if (c == 0 && i < 8 * row && i % inner < 8) moving.elements[i] = Type<T>::of(1000);
      const double part = static_cast<double>(i / row) / static_cast<double>(layout.outer);
      if (c == 1) moving.elements[i] = Type<T>::of(static_cast<double>(plain.at(i)) + 40 * part);
      if (c == 1 && i < plain.elements.size() / 9) {
        many.elements[i] = Type<T>::of(i % 2 ? 1e4 : -1e4);
      }
    }
    for (const Data<T>* x : {&moving, &one, &many}) {
      // M2 with far outliers is also rounded to double.
      const long double rounding = x == &moving ? 0 : 0x1p-50L;
      check_moments(*x, kernels->moments(*x, 0), 2 * Kernels::kUnitOfMoments + rounding,
                    std::min(Kernels::kUnitOfMoments, 5e-8L));
    }
  }
}

template <class Kernels>
void test_outputs(Kernels* kernels) {
  using T = typename Kernels::Element;
  for_each_case<T>(kernels->layouts(), [&](const LayerCase<T>* given, std::uint32_t number) {
    auto phases = kernels->phases(*given, number);
    check_outputs(*given, &phases);
  });
}

template <class Kernels>
void test_gradients(Kernels* kernels) {
  using T = typename Kernels::Element;
  for_each_case<T>(kernels->layouts(), [&](LayerCase<T>* given, std::uint32_t number) {
    auto phases = kernels->phases(*given, number);
    check_gradients(given, &phases, Kernels::kUnitOfSums);
  });
}

/// With a gamma of 1e-3 and a beta of 0, exp(z) - 1 and log(1 + y) would lose digits.
template <class Kernels>
void test_small_outputs(Kernels* kernels) {
  using T = typename Kernels::Element;
  for (const Activation& activation : kActivationsAndNone) {
    LayerCase<T> given({2, 6, 49}, activation, 1);
    for (auto& gamma : given.gamma) gamma = 1e-3F;
    for (auto& beta : given.beta) beta = 0;
    for (std::size_t i = 0; i < given.y.elements.size(); ++i) {
      given.y.elements[i] = Type<T>::of(1e-3 * static_cast<double>(given.y.at(i)));
    }
    auto phases = kernels->phases(given);
    check_outputs(given, &phases);
    check_gradients(&given, &phases, Kernels::kUnitOfSums);
  }
}

template <class Kernels>
void test_kinks(Kernels* kernels) {
  using T = typename Kernels::Element;
  for (const Layout& layout :
       {Layout{5, 6, 1}, Layout{2, 6, 49}, Layout{300, 1, 1}, Layout{1, 1, 1}, Layout{33, 5, 17},
        Layout{1, 3, 2049}, Layout{700, 9, 5}}) {
    if (layout.count() * layout.channels > 2 * Kernels::kMostElements) continue;
    for (const Activation& activation : kActivationsAndNone) {
      if (activation.type == ActType::kNone) continue;
      auto given = case_at_kink<T>(layout, activation);
      auto phases = kernels->phases(given);
      check_outputs(given, &phases);
      check_gradients(&given, &phases, Kernels::kUnitOfEqualSums);
    }
  }
}

template <class Kernels>
void test_not_finite(Kernels* kernels) {
  using T = typename Kernels::Element;
  for (const Layout& layout : {Layout{1, 1, 64}, Layout{64, 1, 1}}) {
    check_not_finite<T>(layout, kernels);
    check_running_statistics<T>(layout, kernels);
    check_flat<T>(layout, kernels);
  }
}

/// Checks that values which are not finite in channels 1 to 3 of 6 change no other channel.
template <class Kernels>
void test_spoiled_channels(Kernels* kernels) {
  using T = typename Kernels::Element;
  const double infinity = std::numeric_limits<double>::infinity();
  const double values[] = {std::numeric_limits<double>::quiet_NaN(), infinity, -infinity};
  for (const Layout& layout : {Layout{5, 6, 1}, Layout{3, 6, 7}, Layout{2, 6, 49}, Layout{40, 6, 1},
                               Layout{1, 6, 2049}, Layout{3, 6, 2049}}) {
    CAPTURE(layout.outer);
    CAPTURE(layout.inner);
    const auto spoil = [&](Data<T>* data) {
      for (std::int64_t c = 1; c <= 3; ++c) {  // the last element of each channel
        const std::int64_t run = (layout.outer - 1) * layout.channels + c;
        const auto at = static_cast<std::size_t>((run + 1) * layout.inner - 1);
        data->elements[at] = Type<T>::of(values[c - 1]);
      }
    };
    const auto check = [](const std::vector<double>& found, const std::vector<double>& clean,
                          std::size_t first_spoiled = 0) {
      REQUIRE(found.size() == clean.size());
      for (std::size_t i = 0; i < clean.size(); ++i) {
        const bool is_spoiled = i >= first_spoiled && i % 6 >= 1 && i % 6 <= 3;
        CHECK((is_spoiled ? !std::isfinite(found[i]) : found[i] == clean[i]));
      }
    };
    const LayerCase<T> clean(layout, {}, 5);
    LayerCase<T> spoiled_x = clean, spoiled_dy = clean;
    spoil(&spoiled_x.x);
    spoil(&spoiled_dy.dy);
    check(kernels->moments(spoiled_x.x, 0), kernels->moments(clean.x, 0));
    const auto sums = kernels->phases(clean).gradient_sums();
    check(kernels->phases(spoiled_x).gradient_sums(), sums, 6);
    check(kernels->phases(spoiled_dy).gradient_sums(), sums);

    LayerCase<T> spoiled = spoiled_x;  // has the statistics of such data
    for (std::size_t c = 1; c <= 3; ++c)
      spoiled.means[c] = spoiled.sum_dz_centered[c] = values[c - 1];
    const auto outputs = [&](const LayerCase<T>& given) {
      auto phases = kernels->phases(given);
      std::vector<T> y(given.x.elements.size()), dx(y);
      phases.normalize(WriteMode::kAssign, false, &y);
      phases.input_gradient(WriteMode::kAssign, &dx);
      y.insert(y.end(), dx.begin(), dx.end());
      return y;
    };
    const std::vector<T> found = outputs(spoiled), expected = outputs(clean);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::size_t c = clean.x.channel(i % clean.x.elements.size());
      const long double now = Type<T>::value(found[i]);
      if (c >= 1 && c <= 3 ? std::isfinite(now) : now != Type<T>::value(expected[i])) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

template <class Kernels>
void test_empty_arrays(Kernels* kernels) {
  using T = typename Kernels::Element;
  for (const Layout& layout :
       {Layout{0, 3, 1}, Layout{0, 3, 49}, Layout{2, 3, 0}, Layout{2, 0, 1}, Layout{2, 0, 49}}) {
    const LayerCase<T> given(layout, {}, 1);
    auto phases = kernels->phases(given);
    const std::vector<double> zeros(2 * given.channels(), 0.0);
    CHECK(same_bits(kernels->moments(given.x, 0), zeros));
    CHECK(same_bits(phases.gradient_sums(), zeros));
    std::vector<T> none;
    phases.normalize(WriteMode::kAssign, false, &none);
    phases.input_gradient(WriteMode::kAdd, &none);
  }
}

/// Returns all results for a case. `number` says how its arrays lie.
template <class T, class Kernels>
auto everything(const LayerCase<T>& given, std::uint32_t number, Kernels* kernels) {
  auto phases = kernels->phases(given, number);
  std::vector<T> y(given.x.elements.size()), dx(y), dz(y);
  phases.normalize(WriteMode::kAssign, given.by == By::kOutput, &y);
  phases.input_gradient(WriteMode::kAssign, &dx);
  if (given.by == By::kOutput) phases.shortcut_gradient(WriteMode::kAssign, &dz);
  return std::make_tuple(y, dx, dz, kernels->moments(given.x, number), phases.gradient_sums(),
                         phases.kept());
}

template <class Kernels>
void test_same_bits(Kernels* kernels, const std::vector<Layout>& layouts,
                    const std::vector<Activation>& activations) {
  using T = typename Kernels::Element;
  for (const Layout& layout : layouts) {
    CAPTURE(layout.outer);
    CAPTURE(layout.inner);
    for (const Activation& activation : activations) {
      LayerCase<T> given(layout, activation, 5);
      for_each_by(&given, [&] {
        if (activation.type == ActType::kNone && given.by != By::kInput) return;
        const auto expected = everything(given, 5, kernels);
        kernels->in_all_orders([&] { CHECK(same_bits(everything(given, 5, kernels), expected)); });
      });
    }
  }
}

#define GLUON_SYNCBN_KERNEL_TEST(name, test, ...)  \
  TEST_CASE_TEMPLATE(name, Kernels, __VA_ARGS__) { \
    Kernels kernels;                               \
    test(&kernels);                                \
  }

/// The test cases for all kinds of `Kernels`, whose names begin with `of`.
#define GLUON_SYNCBN_KERNEL_TESTS(of, ...)                                                         \
  GLUON_SYNCBN_KERNEL_TEST(of ": moments", test_moments, __VA_ARGS__)                              \
  GLUON_SYNCBN_KERNEL_TEST(of ": outputs, with a shortcut and without", test_outputs, __VA_ARGS__) \
  GLUON_SYNCBN_KERNEL_TEST(of ": gradients and their sums", test_gradients, __VA_ARGS__)           \
  GLUON_SYNCBN_KERNEL_TEST(of ": small outputs keep their digits", test_small_outputs,             \
                           __VA_ARGS__)                                                            \
  GLUON_SYNCBN_KERNEL_TEST(of ": at 0 the slope is that from below", test_kinks, __VA_ARGS__)      \
  GLUON_SYNCBN_KERNEL_TEST(of ": what is not finite, and where ELU is flat", test_not_finite,      \
                           __VA_ARGS__)                                                            \
  GLUON_SYNCBN_KERNEL_TEST(of ": NaN and infinity spoil their own channels only",                  \
                           test_spoiled_channels, __VA_ARGS__)                                     \
  GLUON_SYNCBN_KERNEL_TEST(of ": empty arrays", test_empty_arrays, __VA_ARGS__)

}  // namespace gluon_syncbn::tests

#pragma once

// The tests of the kernels, for CPUs and for GPUs: for the rows of kernel_rows.h a body per
// direction. Their parameter `Kernels` has
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
//   in_all_orders(most, check) calls check(number) for up to so many orders in which threads may
//                              run, and ways in which arrays may lie

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
#include "support/kernel_rows.h"
#include "support/layer_case.h"
#include "support/oracle.h"
#include "support/values.h"

namespace gluon_syncbn::tests {

/// Sums that are not finite may be infinite or NaN.
template <class T>
T finite_or_nan(T sum) {
  return std::isfinite(sum) ? sum : std::numeric_limits<T>::quiet_NaN();
}

// Moments.

/// How exact moments are.
struct MomentErrors {
  long double unit;       ///< the relative error of a deviation
  long double mean_unit;  ///< the same in means
  long double in_double = 4e-15L;
};

/// Checks the means and M2 of all channels in `found`, which are sums merged in double.
template <class T>
void check_moments(const Data<T>& x, const std::vector<double>& found, const MomentErrors& errors) {
  const ExactMoments exact({{x.layout}, {x.values()}});
  const auto count = static_cast<long double>(x.layout.count());
  REQUIRE(found.size() == 2 * exact.mean.size());
  // Half data of a large mean may have no deviations at all.
  const auto deviation = [&](std::size_t c) {
    return std::sqrt(exact.m2[c] / std::max(count, 1.0L));
  };
  const auto in_double = [&](std::size_t c) {
    return errors.in_double * (std::fabs(exact.mean[c]) + deviation(c));
  };
  check_close(
      "mean", exact.mean.size(), [&](std::size_t c) { return finite_or_nan(found[c]); },
      [&](std::size_t c) { return finite_or_nan(exact.mean[c]); },
      [&](std::size_t c) { return 4 * errors.mean_unit * deviation(c) + in_double(c); });
  check_close(
      "M2", exact.m2.size(),
      [&](std::size_t c) { return finite_or_nan(found[exact.mean.size() + c]); },
      [&](std::size_t c) { return finite_or_nan(exact.m2[c]); },
      [&](std::size_t c) {
        return count * deviation(c) * (8 * errors.unit * deviation(c) + in_double(c)) +
               count * in_double(c) * in_double(c);
      });
}

/// Calls check(x) for data whose first values, with which kernels guess the mean, are far from it,
/// and for data whose mean moves.
template <class T, class Check>
void for_each_outlier(const Layout& layout, const Check& check) {
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
    if (c == 1 && i < plain.elements.size() / 9) many.elements[i] = Type<T>::of(i % 2 ? 1e4 : -1e4);
  }
  check(moving, 0);
  // M2 with far outliers is also rounded to double.
  check(one, 0x1p-50L);
  check(many, 0x1p-50L);
}

template <class Kernels>
void check_all_moments(Kernels* kernels) {
  using T = typename Kernels::Element;
  const long double unit = Kernels::kUnitOfMoments;
  const MomentErrors usual{unit, unit}, exact{0, 0, 0x1p-60L};
  const auto check = [&](const auto& x, std::uint32_t number, const MomentErrors& errors) {
    const std::string row = Row{x.layout, {}, number}.text();
    CAPTURE(row);
    check_moments(x, kernels->moments(x, number), errors);
  };
  auto layouts = kernels->layouts();
  layouts.push_back({100001, 3, 1});  // parts of which a CPU merges
  for (const Row& row : usual_rows(layouts)) {
    if (row.number == layouts.size() && row.elements() > Kernels::kMostElements) continue;
    check(Data<T>(row.layout, mean_of(row.number), 1, 3), row.number, usual);
    check(Data<T>(row.layout, mean_of(row.number), 0, 3), row.number,
          Kernels::kExactMeans ? exact : MomentErrors{0, 0});
  }
  for (const Layout& layout :
       {Layout{6, 3, 5000}, Layout{2, 3, 5000}, Layout{2, 3, 4999}, Layout{40, 3, 49},
        Layout{9000, 3, 1}, Layout{700, 131, 1}, Layout{200, 3, 7}, Layout{500, 5, 3},
        Layout{2, 65, 9}, Layout{5, 64, 14}, Layout{20, 3, 1}}) {
    if (Row{layout}.elements() > Kernels::kMostElements) continue;
    for_each_outlier<T>(layout, [&](const Data<T>& x, long double rounding) {
      check(x, 0, {2 * unit + rounding, std::min(unit, 5e-8L)});
    });
  }
  if constexpr (std::is_same_v<T, double>) {
    // A mean whose square is too large for double, and whose sum is exact in long double.
    for (const Layout& layout : {Layout{1, 3, 1}, Layout{2, 3, 1}, Layout{3, 5, 7},
                                 Layout{2000, 3, 1}, Layout{2, 3, 49}, Layout{1, 2, 9973}}) {
      Data<T> x(layout, 0, 1, 3);
      x.elements.assign(x.elements.size(), -0x1.000001p666);
      check(x, 0, exact);
    }
  }
}

// Forward and backward.

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

/// Checks the sums. `unit` is the greatest relative error of a term, or of adding it.
template <class T>
void check_gradient_sums(const LayerCase<T>& given, const std::vector<double>& found,
                         long double unit) {
  const std::size_t channels = given.channels();
  Values expected(2 * channels), size(expected);
  for (std::size_t i = 0; i < given.x.elements.size(); ++i) {
    const std::size_t c = given.x.channel(i);
    const long double dz = given.dz(i), size_of_dz = given.size_of_dz(i);
    expected[c] += dz;
    expected[channels + c] += dz * given.centered(i);
    size[c] += size_of_dz;
    // The kernels subtract the rest of the mean exactly, at the end.
    size[channels + c] +=
        size_of_dz * given.size_of_centered(i) + 0x1p-24L * std::fabs(given.means[c] * dz);
  }
  REQUIRE(found.size() == expected.size());
  check_close(
      "sum", expected.size(), [&](std::size_t i) { return finite_or_nan(found[i]); },
      [&](std::size_t i) { return finite_or_nan(expected[i]); },
      [&](std::size_t i) { return unit * size[i]; });
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

/// Calls check(&given, &phases, row) for each row.
template <class Kernels, class Check>
void for_each_case(Kernels* kernels, const std::vector<Row>& rows, const Check& check) {
  for (const Row& row : rows) {
    const std::string text = row.text();
    CAPTURE(text);
    LayerCase<typename Kernels::Element> given(row);
    auto phases = kernels->phases(given, row.number);
    check(&given, &phases, row);
  }
}

template <class Kernels>
void check_outputs(Kernels* kernels, const std::vector<Row>& rows) {
  using T = typename Kernels::Element;
  for_each_case(kernels, rows, [](const auto* given, auto* phases, const Row&) {
    for (const bool add : {false, true}) {
      CAPTURE(add);
      const auto shortcut = [&](std::size_t i) { return add ? given->y.at(i) : 0; };
      check_output(
          given->x, [&](WriteMode write, std::vector<T>* y) { phases->normalize(write, add, y); },
          [&](std::size_t i) { return given->out(i, shortcut(i)); },
          [&](std::size_t i) { return given->size_of_out(i, shortcut(i)); });
    }
  });
}

template <class Kernels>
void check_gradients(Kernels* kernels, const std::vector<Row>& rows) {
  using T = typename Kernels::Element;
  for_each_case(kernels, rows, [](auto* given, auto* phases, const Row& row) {
    for_each_by(given, [&] {
      check_gradient_sums(
          *given, phases->gradient_sums(),
          row.given == Given::kAtKink ? Kernels::kUnitOfEqualSums : Kernels::kUnitOfSums);
      check_dx(*given,
               [&](WriteMode write, std::vector<T>* dx) { phases->input_gradient(write, dx); });
      if (given->by != By::kOutput) return;
      check_dshortcut(*given, [&](WriteMode write, std::vector<T>* dz) {
        phases->shortcut_gradient(write, dz);
      });
    });
  });
}

template <class Kernels>
void check_special(Kernels* kernels, const std::vector<Given>& all) {
  for (const Given given : all) {
    const auto rows = special_rows(given, 2 * std::int64_t{Kernels::kMostElements});
    check_outputs(kernels, rows);
    check_gradients(kernels, rows);
    for (const Row& row : rows) {
      CAPTURE(row.text());
      const LayerCase<typename Kernels::Element> layer(row);
      const long double unit = Kernels::kUnitOfMoments;
      check_moments(layer.x, kernels->moments(layer.x, row.number), {unit, unit});
    }
  }
}

// The same bits.

/// Returns all results for a case. `number` says how its arrays lie.
template <class T, class Kernels>
auto everything(const LayerCase<T>& given, WriteMode write, std::uint32_t number,
                Kernels* kernels) {
  auto phases = kernels->phases(given, number);
  std::vector<T> y(given.x.elements.size()), dx(y), dz(y);
  phases.normalize(write, given.by == By::kOutput, &y);
  phases.input_gradient(write, &dx);
  if (given.by == By::kOutput) phases.shortcut_gradient(write, &dz);
  return std::make_tuple(y, dx, dz, kernels->moments(given.x, number), phases.gradient_sums(),
                         phases.kept());
}

/// Checks that neither order matters nor how arrays lie, nor whether outputs are added to zeros.
template <class Kernels>
void check_same_bits(Kernels* kernels, std::uint32_t orders, const std::vector<Layout>& layouts,
                     const std::vector<Activation>& activations) {
  using T = typename Kernels::Element;
  for (const Layout& layout : layouts) {
    for (const Activation& activation : activations) {
      const Row row{layout, activation, 5};
      const std::string text = row.text();
      CAPTURE(text);
      LayerCase<T> given(row);
      for_each_by(&given, [&] {
        if (activation.type == ActType::kNone && given.by != By::kInput) return;
        const auto expected = everything(given, WriteMode::kAdd, row.number, kernels);
        kernels->in_all_orders(orders, [&](std::uint32_t number) {
          CAPTURE(number);
          CHECK(same_bits(everything(given, WriteMode::kAssign, number, kernels), expected));
        });
      });
    }
  }
}

#define GLUON_SYNCBN_KERNEL_TEST(name, check, ...) \
  TEST_CASE_TEMPLATE(name, Kernels, __VA_ARGS__) { \
    Kernels kernels;                               \
    check;                                         \
  }

/// The test cases for all kinds of `Kernels`, whose names begin with `of`.
#define GLUON_SYNCBN_KERNEL_TESTS(of, ...)                                                         \
  GLUON_SYNCBN_KERNEL_TEST(of ": moments", check_all_moments(&kernels), __VA_ARGS__)               \
  GLUON_SYNCBN_KERNEL_TEST(of ": outputs, with a shortcut and without",                            \
                           check_outputs(&kernels, usual_rows(Kernels::layouts())), __VA_ARGS__)   \
  GLUON_SYNCBN_KERNEL_TEST(of ": gradients and their sums",                                        \
                           check_gradients(&kernels, usual_rows(Kernels::layouts())), __VA_ARGS__) \
  GLUON_SYNCBN_KERNEL_TEST(of ": small outputs keep their digits",                                 \
                           check_special(&kernels, {Given::kSmall}), __VA_ARGS__)                  \
  GLUON_SYNCBN_KERNEL_TEST(of ": at 0 the slope is that from below",                               \
                           check_special(&kernels, {Given::kAtKink}), __VA_ARGS__)                 \
  GLUON_SYNCBN_KERNEL_TEST(of ": what is not finite, and where ELU is flat",                       \
                           check_special(&kernels, {Given::kNotFinite, Given::kNotFiniteRunning,   \
                                                    Given::kDead, Given::kFlat}),                  \
                           __VA_ARGS__)                                                            \
  GLUON_SYNCBN_KERNEL_TEST(                                                                        \
      of ": NaN and infinity spoil their own channels only",                                       \
      check_special(&kernels, {Given::kSpoiledX, Given::kSpoiledDy, Given::kSpoiledStatistics}),   \
      __VA_ARGS__)                                                                                 \
  GLUON_SYNCBN_KERNEL_TEST(of ": empty arrays", check_special(&kernels, {Given::kEmpty}),          \
                           __VA_ARGS__)

}  // namespace gluon_syncbn::tests

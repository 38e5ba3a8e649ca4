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
#include "support/outputs.h"
#include "support/values.h"
#include "support/whole_arrays.h"

namespace gluon_syncbn::tests {
namespace {

const Layout kLayouts[] = {{5, 6, 1},   {3, 6, 7},   {2, 6, 49},  {40, 6, 1}, {1, 3, 2049},
                           {33, 5, 17}, {300, 1, 1}, {9, 257, 1}, {1, 1, 1}};

/// Numbers of a case: a normalization, and gradients that are 0 where rounding decides on which
/// side of its kink an activation is.
template <class T>
struct Case {
  Data<T> x;
  Data<T> shortcut;
  Data<T> dy;
  cpu::Normalization n;

  Case(const Layout& layout, const Activation& activation, std::uint32_t seed)
      : x(layout, 10, 1, seed),
        shortcut(layout, 0, 1, seed + 1),
        dy(layout, 0.1, 1, seed + 2),
        n{means_near(layout, 10, seed), parameters(layout, 1, seed + 3),
          parameters(layout, -0.5, seed + 4), activation} {
    for (std::size_t i = 0; i < x.elements.size(); ++i) {
      if (std::fabs(z(i)) < 1e-3L) dy.elements[i] = T{};
    }
  }

  long double centered(std::size_t i) const { return x.at(i) - n.mean[x.channel(i)]; }
  long double z(std::size_t i) const {
    return centered(i) * n.scale[x.channel(i)] + n.shift[x.channel(i)];
  }
  /// Sum of the absolute terms of z.
  long double magnitude(std::size_t i) const {
    const std::size_t c = x.channel(i);
    return std::fabs(centered(i) * n.scale[c]) + std::fabs(n.shift[c]);
  }
  cpu::Gate<T> gate_of_input() const { return {n.activation, nullptr, n.scale, n.shift}; }
};

template <class T, class Try>
void for_each_case(const Try& try_case) {
  std::uint32_t seed = 0;
  for (const Layout& layout : kLayouts) {
    for (const Activation& activation : kActivations) {
      CAPTURE(layout.outer);
      CAPTURE(layout.channels);
      CAPTURE(layout.inner);
      CAPTURE(static_cast<int>(activation.type));
      try_case(Case<T>(layout, activation, ++seed));
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("activations: outputs, with a shortcut and without", Given, GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for_each_case<T>([](const Case<T>& given) {
    const Data<T>& x = given.x;
    for (const Data<T>* shortcut : {static_cast<const Data<T>*>(nullptr), &given.shortcut}) {
      const T* added = shortcut ? shortcut->data() : nullptr;
      const auto z = [&](std::size_t i) { return given.z(i) + (shortcut ? shortcut->at(i) : 0); };
      check_output(
          x,
          [&](WriteMode write, std::vector<T>* y) {
            cpu::normalize(x.data(), x.layout, given.n, write, y->data(), added);
          },
          [&](std::size_t i) { return activated(given.n.activation, z(i)); },
          [&](std::size_t i) {
            return given.magnitude(i) + (shortcut ? std::fabs(shortcut->at(i)) : 0);
          });
    }
  });
}

TEST_CASE_TEMPLATE("activations: a shortcut alone", Given, GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for (const Layout& layout : kLayouts) {
    const Case<T> given(layout, {}, 3);
    check_output(
        given.x,
        [&](WriteMode write, std::vector<T>* y) {
          cpu::normalize(given.x.data(), layout, given.n, write, y->data(), given.shortcut.data());
        },
        [&](std::size_t i) { return given.z(i) + given.shortcut.at(i); },
        [&](std::size_t i) { return given.magnitude(i) + std::fabs(given.shortcut.at(i)); });
    check_output(
        given.x,
        [&](WriteMode write, std::vector<T>* dz) {
          cpu::shortcut_gradient(given.dy.data(), layout, write, dz->data(), cpu::Gate<T>{});
        },
        [&](std::size_t i) { return given.dy.at(i); },
        [&](std::size_t i) { return std::fabs(given.dy.at(i)); });
  }
}

TEST_CASE_TEMPLATE("activations: gradient sums by the input and by the output", Given,
                   GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for_each_case<T>([](const Case<T>& given) {
    const auto check = [&](const cpu::Gate<T>& gate, const auto& steep) {
      const GradientSums sums =
          cpu::gradient_sums(given.dy.data(), given.x.data(), given.x.layout, given.n.mean, gate);
      std::vector<long double> plain(given.n.mean.size());
      std::vector<long double> centered(plain), plain_size(plain), centered_size(plain);
      for (std::size_t i = 0; i < given.x.elements.size(); ++i) {
        const std::size_t c = given.x.channel(i);
        const long double dz = given.dy.at(i) * steep(i);
        plain[c] += dz;
        centered[c] += dz * given.centered(i);
        plain_size[c] += std::fabs(dz);
        centered_size[c] += std::fabs(dz * given.centered(i));
      }
      for (std::size_t c = 0; c < plain.size(); ++c) {
        REQUIRE(std::fabs(sums.dy[c] - plain[c]) <= 2e-14L * plain_size[c]);
        REQUIRE(std::fabs(sums.dy_centered[c] - centered[c]) <= 2e-14L * centered_size[c]);
      }
    };
    const Activation& act = given.n.activation;
    check(given.gate_of_input(), [&](std::size_t i) { return steepness(act, given.z(i)); });
    check({act, given.shortcut.data(), {}, {}},
          [&](std::size_t i) { return steepness_at(act, given.shortcut.at(i)); });
  });
}

TEST_CASE_TEMPLATE("activations: input gradient by the input and by the output", Given,
                   GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for_each_case<T>([](const Case<T>& given) {
    const Layout& layout = given.x.layout;
    const cpu::InputGradient g{given.n.mean, parameters(layout, 1, 7), parameters(layout, -0.2, 8),
                               parameters(layout, 0.1, 9)};
    const auto check = [&](const cpu::Gate<T>& gate, const auto& steep, const auto& spread) {
      const auto direct = [&](std::size_t i) {
        return g.dy_factor[given.x.channel(i)] * given.dy.at(i) * steep(i);
      };
      const auto centered = [&](std::size_t i) {
        return g.x_factor[given.x.channel(i)] * given.centered(i);
      };
      check_output(
          given.x,
          [&](WriteMode write, std::vector<T>* dx) {
            cpu::input_gradient(given.dy.data(), given.x.data(), layout, g, write, dx->data(),
                                gate);
          },
          [&](std::size_t i) { return direct(i) + centered(i) + g.constant[given.x.channel(i)]; },
          [&](std::size_t i) {
            return std::fabs(direct(i)) * spread(i) + std::fabs(centered(i)) +
                   std::fabs(g.constant[given.x.channel(i)]);
          });
    };
    const Activation& act = given.n.activation;
    // exp() makes a relative error of an absolute one.
    check(
        given.gate_of_input(), [&](std::size_t i) { return steepness(act, given.z(i)); },
        [&](std::size_t i) { return 1 + given.magnitude(i); });
    check(
        {act, given.shortcut.data(), {}, {}},
        [&](std::size_t i) { return steepness_at(act, given.shortcut.at(i)); },
        [&](std::size_t i) { return 1 + std::fabs(given.shortcut.at(i)); });
  });
}

TEST_CASE_TEMPLATE("activations: gradient of the shortcut", Given, GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for_each_case<T>([](const Case<T>& given) {
    const Activation& act = given.n.activation;
    const Data<T>& y = given.shortcut;
    check_output(
        given.x,
        [&](WriteMode write, std::vector<T>* dz) {
          cpu::shortcut_gradient(given.dy.data(), given.x.layout, write, dz->data(),
                                 cpu::Gate<T>{act, y.data(), {}, {}});
        },
        [&](std::size_t i) { return given.dy.at(i) * steepness_at(act, y.at(i)); },
        [&](std::size_t i) { return std::fabs(given.dy.at(i)) * (1 + std::fabs(y.at(i))); });
  });
}

TEST_CASE_TEMPLATE("activations: in place, the output tells everything", Given,
                   GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  std::uint32_t seed = 100;
  for (const Layout& layout : kLayouts) {
    for (const Activation& act : {Activation{}, Activation{ActType::kLeaky, 0.1},
                                  Activation{ActType::kElu, 1}, Activation{ActType::kElu, 0.4}}) {
      const Case<T> given(layout, act, ++seed);
      // Any output will do, if ELU is not flat there.
      Data<T> y(layout, 0.6, 0.3, seed);
      for (T& element : y.elements) {
        const double least = -0.9 * (act.type == ActType::kElu ? act.slope : 10);
        element = Type<T>::of(std::max(static_cast<double>(Type<T>::value(element)), least));
      }
      const cpu::Gate<T> gate{act, y.data(), given.n.scale, given.n.shift};
      const auto centered = [&](std::size_t i) {
        const std::size_t c = y.channel(i);
        return (inverse(act, y.at(i)) - given.n.shift[c]) * given.n.scale[c];
      };
      const auto size = [&](std::size_t i) {
        const std::size_t c = y.channel(i);
        return (10 + std::fabs(given.n.shift[c])) * std::fabs(given.n.scale[c]);
      };
      const auto dz = [&](std::size_t i) { return given.dy.at(i) * steepness_at(act, y.at(i)); };
      const T* no_input = nullptr;
      const GradientSums sums =
          cpu::gradient_sums(given.dy.data(), no_input, layout, given.n.mean, gate);
      std::vector<long double> plain(given.n.mean.size()), products(plain), error(plain);
      for (std::size_t i = 0; i < y.elements.size(); ++i) {
        const std::size_t c = y.channel(i);
        plain[c] += dz(i);
        products[c] += dz(i) * centered(i);
        error[c] += 1e-14L * std::fabs(given.dy.at(i)) * (1 + size(i));
      }
      for (std::size_t c = 0; c < plain.size(); ++c) {
        REQUIRE(std::fabs(sums.dy[c] - plain[c]) <= error[c]);
        REQUIRE(std::fabs(sums.dy_centered[c] - products[c]) <= error[c]);
      }
      const cpu::InputGradient g{given.n.mean, parameters(layout, 1, 7),
                                 parameters(layout, -0.2, 8), parameters(layout, 0.1, 9)};
      check_output(
          given.x,
          [&](WriteMode write, std::vector<T>* dx) {
            cpu::input_gradient(given.dy.data(), no_input, layout, g, write, dx->data(), gate);
          },
          [&](std::size_t i) {
            const std::size_t c = y.channel(i);
            return g.dy_factor[c] * dz(i) + g.x_factor[c] * centered(i) + g.constant[c];
          },
          [&](std::size_t i) {
            const std::size_t c = y.channel(i);
            return std::fabs(g.dy_factor[c] * dz(i)) + std::fabs(g.x_factor[c]) * size(i) +
                   std::fabs(g.constant[c]);
          });
    }
  }
}

TEST_CASE_TEMPLATE("activations: at 0 the slope is that from below", Given, GLUON_SYNCBN_CASES) {
  using T = typename Given::Type;
  const UseIsa use(Given::kIsa);
  for (const Layout& layout : kLayouts) {
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

// The phases with an activation or a shortcut, as test_phases.cc tests them without.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "cuda/device_array.h"
#include "cuda/kernels/phases.h"
#include "cuda/needs_gpu.h"
#include "cuda/phase_arrays.h"
#include "norm/activation.h"
#include "support/activations.h"
#include "support/arrays.h"
#include "support/outputs.h"
#include "support/values.h"

namespace gluon_syncbn::tests {
namespace {

/// A layer on one device whose batch has given moments. Gradients are 0 where rounding decides on
/// which side of its kink the activation is.
template <class T>
struct Case {
  using R = Real<T>;

  Case(cuda::Stream* stream_in, const Layout& layout, const Activation& activation_in,
       std::uint32_t seed)
      : stream(stream_in),
        activation(activation_in),
        workspace(stream),
        x(layout, 10, 1, seed),
        shortcut(layout, 0, 1, seed + 1),
        dy(layout, 0.1, 1, seed + 2),
        means(means_near(layout, 10, seed)),
        m2(parameters(layout, 5, seed + 3)),
        gamma(as<R>(parameters(layout, 1, seed + 4))),
        beta(as<R>(parameters(layout, -0.5, seed + 5))),
        forward(stream, message_of(means, m2), kCount, gamma, beta),
        normalizations(stream, std::vector<cuda::StoredAffine<R>>(means.size())),
        gamma_gradient(stream, std::vector<R>(means.size())),
        beta_gradient(stream, std::vector<R>(means.size())),
        sums(stream, std::vector<double>(2 * means.size())),
        inv_std(stream, inv_stds()),
        mean(stream, means),
        message(stream, message_of(parameters(layout, 3, seed + 6), parameters(layout, -2, 3))) {
    for (std::size_t i = 0; i < x.elements.size(); ++i) {
      if (std::fabs(z(i)) < 1e-3L) dy.elements[i] = T{};
    }
    // Some arrays lie alike within 16 bytes, others do not.
    offset = seed % 3 == 0 ? seed / 3 % 8 : 0;
    other_offset = seed % 5 == 1 ? 1 : offset;
  }

  static std::vector<double> message_of(std::vector<double> first,
                                        const std::vector<double>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }
  std::vector<double> inv_stds() const {
    std::vector<double> values;
    for (std::size_t c = 0; c < means.size(); ++c) {
      values.push_back(static_cast<double>(exact_inv_std(c)));
    }
    return values;
  }
  long double exact_inv_std(std::size_t c) const {
    return 1 / std::sqrt(static_cast<long double>(m2[c]) / kCount + forward.source.eps);
  }
  long double centered(std::size_t i) const { return x.at(i) - means[x.channel(i)]; }
  long double scaled(std::size_t i) const {
    const std::size_t c = x.channel(i);
    return centered(i) * gamma[c] * exact_inv_std(c);
  }
  long double z(std::size_t i) const { return scaled(i) + beta[x.channel(i)]; }
  /// Sum of the absolute terms of z.
  long double magnitude(std::size_t i) const {
    return std::fabs(scaled(i)) + std::fabs(static_cast<long double>(beta[x.channel(i)]));
  }

  /// Also leaves what GateOf::kInput needs.
  void normalize(WriteMode write, const Data<T>* added, std::vector<T>* y) {
    const DeviceArray<T> x_on_device(stream, x.elements, offset);
    const DeviceArray<T> out(stream, *y, offset);
    const DeviceArray<T> shortcut_on_device(stream, shortcut.elements, other_offset);
    cuda::normalize(
        x_on_device.data(), x.layout, forward.source, write, out.data(), &workspace, stream,
        {activation, added ? shortcut_on_device.data() : nullptr, normalizations.data()});
    *y = out.download();
  }

  cuda::BackwardSource<R> source() {
    cuda::BackwardSource<R> source{};
    source.messages.values[0] = message.data();
    source.messages.size = 1;
    source.own = message.data();
    source.channels = x.layout.channels;
    source.mean = mean.data();
    source.inv_std = inv_std.data();
    source.gamma = forward.gamma.data();
    source.count = kCount;
    source.sums = sums.data();
    source.gamma_gradient = {gamma_gradient.data(), false};
    source.beta_gradient = {beta_gradient.data(), false};
    return source;
  }

  static constexpr double kCount = 7;

  cuda::Stream* stream;
  Activation activation;
  Workspace workspace;
  Data<T> x;
  Data<T> shortcut;  // and the output of another layer
  Data<T> dy;
  std::vector<double> means;
  std::vector<double> m2;
  std::vector<R> gamma;
  std::vector<R> beta;
  ForwardArrays<R> forward;
  DeviceArray<cuda::StoredAffine<R>> normalizations;
  DeviceArray<R> gamma_gradient, beta_gradient;
  DeviceArray<double> sums, inv_std, mean, message;
  std::size_t offset = 0;
  std::size_t other_offset = 0;
};

/// What tells how steep the activation was.
enum class GateOf { kInput, kOutput };

template <class T>
struct GateCase {
  GateCase(Case<T>* given_in, GateOf of_in)
      : given(*given_in),
        of(of_in),
        y_on_device(given.stream, given.shortcut.elements, given.other_offset),
        gate{given.activation, of == GateOf::kOutput ? y_on_device.data() : nullptr,
             of == GateOf::kInput ? given.normalizations.data() : nullptr} {
    std::vector<T> y(given.x.elements.size());
    if (of == GateOf::kInput) given.normalize(WriteMode::kAssign, nullptr, &y);
  }

  long double steep(std::size_t i) const {
    return of == GateOf::kInput ? steepness(given.activation, given.z(i))
                                : steepness_at(given.activation, given.shortcut.at(i));
  }
  /// exp() makes a relative error of an absolute one.
  long double spread(std::size_t i) const {
    return 1 + (of == GateOf::kInput ? given.magnitude(i) : std::fabs(given.shortcut.at(i)));
  }

  Case<T>& given;
  GateOf of;
  DeviceArray<T> y_on_device;
  cuda::Gate<T> gate;
};

template <class T, class Try>
void for_each_gate(const Try& try_case) {
  for_each_case<Case<T>>(kActivations, [&](Case<T>* given) {
    for (const GateOf of : {GateOf::kInput, GateOf::kOutput}) {
      CAPTURE((of == GateOf::kOutput));
      try_case(GateCase<T>(given, of));
    }
  });
}

}  // namespace

TEST_CASE_TEMPLATE("cuda activations: outputs, with a shortcut and without", T, float, double,
                   Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  for_each_case<Case<T>>(kActivations, [](Case<T>* given) {
    for (const Data<T>* added : {static_cast<Data<T>*>(nullptr), &given->shortcut}) {
      const auto shortcut = [&](std::size_t i) { return added ? added->at(i) : 0; };
      check_output(
          given->x, [&](WriteMode write, std::vector<T>* y) { given->normalize(write, added, y); },
          [&](std::size_t i) { return activated(given->activation, given->z(i) + shortcut(i)); },
          [&](std::size_t i) { return given->magnitude(i) + std::fabs(shortcut(i)); });
    }
  });
}

TEST_CASE_TEMPLATE("cuda activations: a shortcut alone", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  std::uint32_t seed = 0;
  for (const Layout& layout : kLayouts) {
    if (layout.count() * layout.channels > 2 * kMostElements) continue;
    Case<T> given(&stream, layout, {}, ++seed);
    check_output(
        given.x,
        [&](WriteMode write, std::vector<T>* y) { given.normalize(write, &given.shortcut, y); },
        [&](std::size_t i) { return given.z(i) + given.shortcut.at(i); },
        [&](std::size_t i) { return given.magnitude(i) + std::fabs(given.shortcut.at(i)); });
    const DeviceArray<T> dy(&stream, given.dy.elements, given.offset);
    const DeviceArray<T> x(&stream, given.x.elements, given.offset);
    std::vector<T> nothing = given.x.elements;
    const DeviceArray<T> dx(&stream, nothing), expected_dx(&stream, nothing);
    check_output(
        given.x,
        on_device<T>(&stream, given.other_offset,
                     [&](WriteMode write, T* dshortcut) {
                       cuda::input_gradient(dy.data(), x.data(), layout, given.source(),
                                            WriteMode::kAssign, dx.data(), &given.workspace,
                                            &stream, {}, write, dshortcut);
                     }),
        [&](std::size_t i) { return given.dy.at(i); },
        [&](std::size_t i) { return std::fabs(given.dy.at(i)); });
    cuda::input_gradient(dy.data(), x.data(), layout, given.source(), WriteMode::kAssign,
                         expected_dx.data(), &given.workspace, &stream);
    CHECK(same_bits(dx.download(), expected_dx.download()));
  }
}

TEST_CASE_TEMPLATE("cuda activations: gradient sums by the input and by the output", T, float,
                   double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  for_each_gate<T>([](const GateCase<T>& gated) {
    Case<T>& given = gated.given;
    const DeviceArray<T> dy(given.stream, given.dy.elements, given.offset);
    const DeviceArray<T> x(given.stream, given.x.elements, given.offset);
    const std::size_t channels = given.means.size();
    const DeviceArray<double> message(given.stream, std::vector<double>(2 * channels, -1));
    cuda::gradient_sums(dy.data(), x.data(), given.x.layout, given.mean.data(), &given.workspace,
                        message.data(), given.stream, gated.gate);
    const std::vector<double> sums = message.download();
    std::vector<long double> first(channels), second(first), first_size(first), second_size(first);
    for (std::size_t i = 0; i < given.x.elements.size(); ++i) {
      const std::size_t c = given.x.channel(i);
      const long double dz = given.dy.at(i) * gated.steep(i);
      first[c] += dz;
      second[c] += dz * given.centered(i);
      const long double size = std::fabs(dz) * gated.spread(i);
      first_size[c] += size;
      second_size[c] +=
          size * std::fabs(given.centered(i)) + 0x1p-24L * std::fabs(given.means[c] * dz);
    }
    for (std::size_t c = 0; c < channels; ++c) {
      REQUIRE(std::fabs(sums[c] - first[c]) <= 4 * Type<T>::kUnit * first_size[c]);
      REQUIRE(std::fabs(sums[channels + c] - second[c]) <= 4 * Type<T>::kUnit * second_size[c]);
    }
  });
}

TEST_CASE_TEMPLATE("cuda activations: gradients of input and shortcut", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  for_each_gate<T>([](const GateCase<T>& gated) {
    Case<T>& given = gated.given;
    cuda::Stream* stream = given.stream;
    const Layout& layout = given.x.layout;
    const DeviceArray<T> dy(stream, given.dy.elements, given.offset);
    const DeviceArray<T> x(stream, given.x.elements, given.offset);
    const std::vector<double> message = given.message.download();
    const auto factor = [&](std::size_t c) { return given.gamma[c] * given.exact_inv_std(c); };
    const auto dz = [&](std::size_t i) { return given.dy.at(i) * gated.steep(i); };
    const auto from_sums = [&](std::size_t i) -> std::vector<long double> {
      const std::size_t c = given.x.channel(i);
      const long double inv_std = given.exact_inv_std(c);
      const long double share = -factor(c) / Case<T>::kCount;
      return {share * message[c],
              share * message[given.means.size() + c] * inv_std * inv_std * given.centered(i)};
    };
    const auto run = [&](WriteMode write, T* dx, WriteMode write_shortcut, T* dshortcut) {
      cuda::input_gradient(dy.data(), x.data(), layout, given.source(), write, dx, &given.workspace,
                           stream, gated.gate, write_shortcut, dshortcut);
    };
    const auto check_dx = [&](const auto& run_for) {
      check_output(
          given.x, on_device<T>(stream, given.offset, run_for),
          [&](std::size_t i) {
            const auto terms = from_sums(i);
            return factor(given.x.channel(i)) * dz(i) + terms[0] + terms[1];
          },
          [&](std::size_t i) {
            const auto terms = from_sums(i);
            return std::fabs(factor(given.x.channel(i)) * dz(i)) * gated.spread(i) +
                   std::fabs(terms[0]) + std::fabs(terms[1]);
          });
    };
    const auto check_dshortcut = [&](const auto& run_for) {
      check_output(given.x, on_device<T>(stream, given.other_offset, run_for), dz,
                   [&](std::size_t i) { return std::fabs(given.dy.at(i)) * gated.spread(i); });
    };
    const WriteMode assign = WriteMode::kAssign;
    check_dx([&](WriteMode write, T* dx) { run(write, dx, assign, nullptr); });
    if (gated.of == GateOf::kInput) return;
    // Each alone, and both, of which one is added to.
    const DeviceArray<T> other(stream, given.x.elements);
    check_dx([&](WriteMode write, T* dx) { run(write, dx, assign, other.data()); });
    check_dshortcut([&](WriteMode write, T* to) { run(assign, nullptr, write, to); });
    check_dshortcut([&](WriteMode write, T* to) { run(WriteMode::kAdd, other.data(), write, to); });
  });
}

TEST_CASE_TEMPLATE("cuda activations: at 0 the slope is that from below", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  using R = Real<T>;
  cuda::Stream stream(0);
  for (const Layout& layout : kLayouts) {
    if (layout.count() * layout.channels > kMostElements) continue;
    for (const Activation& activation : kActivations) {
      Case<T> given(&stream, layout, activation, 1);
      given.x = Data<T>(layout, 3, 0, 1);  // constant channels
      const std::size_t channels = given.means.size();
      std::vector<double> means;
      for (std::size_t c = 0; c < channels; ++c) {
        means.push_back(static_cast<double>(given.x.at(c * std::size_t(layout.inner))));
      }
      const DeviceArray<double> mean(&stream, means);
      const DeviceArray<double> moments(&stream, Case<T>::message_of(means, given.m2));
      const DeviceArray<R> zeros(&stream, std::vector<R>(channels));
      given.forward.source.beta = zeros.data();
      given.forward.source.messages.values[0] = moments.data();
      std::vector<T> y(given.x.elements.size());
      given.normalize(WriteMode::kAssign, nullptr, &y);
      const DeviceArray<T> dy(&stream, std::vector<T>(y.size(), Type<T>::of(1)));
      const DeviceArray<T> x(&stream, given.x.elements), y_on_device(&stream, y);
      const DeviceArray<T> dx(&stream, y), dshortcut(&stream, y);
      // With constant statistics and deviations of 1, dx is dz.
      const DeviceArray<double> ones(&stream, std::vector<double>(channels, 1));
      auto source = given.source();
      source.messages.size = 0;
      source.mean = mean.data();
      source.inv_std = ones.data();
      source.gamma = nullptr;
      const long double slope = Type<T>::value(Type<T>::of(activation.slope));
      std::size_t wrong = 0;
      for (const T& element : y) wrong += Type<T>::value(element) != 0;
      const cuda::Gate<T> gates[] = {{activation, nullptr, given.normalizations.data()},
                                     {activation, y_on_device.data(), nullptr}};
      for (const cuda::Gate<T>& gate : gates) {
        cuda::input_gradient(dy.data(), x.data(), layout, source, WriteMode::kAssign, dx.data(),
                             &given.workspace, &stream, gate, WriteMode::kAssign,
                             gate.y ? dshortcut.data() : nullptr);
        for (const T& element : dx.download()) wrong += Type<T>::value(element) != slope;
        const DeviceArray<double> sums(&stream, std::vector<double>(2 * channels, -1));
        cuda::gradient_sums(dy.data(), x.data(), layout, mean.data(), &given.workspace, sums.data(),
                            &stream, gate);
        const auto found = sums.download();
        for (std::size_t c = 0; c < channels; ++c) {
          CHECK(found[c] == doctest::Approx(activation.slope * double(layout.count())));
        }
      }
      for (const T& element : dshortcut.download()) wrong += Type<T>::value(element) != slope;
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE_TEMPLATE("cuda activations: what is not finite", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  const long double infinity = std::numeric_limits<long double>::infinity();
  for (const Layout& layout : {Layout{1, 1, 64}, Layout{64, 1, 1}}) {
    for (const Activation& activation : kActivations) {
      Case<T> given(&stream, layout, activation, 2);
      given.x.elements[0] = Type<T>::of(std::numeric_limits<double>::infinity());
      given.x.elements[20] = Type<T>::of(-std::numeric_limits<double>::infinity());
      given.x.elements[63] = Type<T>::of(std::numeric_limits<double>::quiet_NaN());
      std::vector<T> y(64);
      given.normalize(WriteMode::kAssign, nullptr, &y);
      CHECK(Type<T>::value(y[0]) == infinity);
      CHECK(Type<T>::value(y[20]) ==
            Type<T>::value(Type<T>::of(static_cast<double>(activated(activation, -infinity)))));
      CHECK(std::isnan(Type<T>::value(y[63])));
      // What ReLU cuts off is gone even where it is not finite.
      if (activation.type != ActType::kRelu) continue;
      const DeviceArray<T> infinite(&stream, given.x.elements), dx(&stream, y);
      const DeviceArray<T> below(&stream, Data<T>(layout, -50, 1, 1).elements);
      const DeviceArray<T> dshortcut(&stream, y);
      cuda::input_gradient(infinite.data(), below.data(), layout, given.source(),
                           WriteMode::kAssign, dx.data(), &given.workspace, &stream,
                           {activation, below.data(), nullptr}, WriteMode::kAssign,
                           dshortcut.data());
      for (const T& element : dshortcut.download()) CHECK(Type<T>::value(element) == 0);
      for (const T& element : dx.download()) CHECK(std::isfinite(Type<T>::value(element)));
    }
  }
}

TEST_CASE_TEMPLATE("cuda activations: the same bits every time", T, float, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for (const Layout& layout :
       {Layout{3, 65, 49}, Layout{3000, 65, 1}, Layout{2, 2, 9973}, Layout{700, 64, 5}}) {
    if (layout.count() * layout.channels > 8 * kMostElements) continue;
    for (const GateOf of : {GateOf::kInput, GateOf::kOutput}) {
      const auto run = [&] {
        Case<T> given(&stream, layout, {ActType::kElu, 1}, 5);
        const GateCase<T> gated(&given, of);
        std::vector<T> y(given.x.elements.size());
        given.normalize(WriteMode::kAssign, of == GateOf::kOutput ? &given.shortcut : nullptr, &y);
        const DeviceArray<T> dy(&stream, given.dy.elements), x(&stream, given.x.elements);
        const DeviceArray<T> dx(&stream, y), dshortcut(&stream, y);
        cuda::gradient_sums(dy.data(), x.data(), layout, given.mean.data(), &given.workspace,
                            given.message.data(), &stream, gated.gate);
        cuda::input_gradient(dy.data(), x.data(), layout, given.source(), WriteMode::kAssign,
                             dx.data(), &given.workspace, &stream, gated.gate, WriteMode::kAssign,
                             of == GateOf::kOutput ? dshortcut.data() : nullptr);
        return std::make_tuple(given.message.download(), y, dx.download(), dshortcut.download());
      };
      const auto before = run();
      for (const auto order : kOtherOrders) {
        const InOrder in_order(order);
        const auto after = run();
        CHECK(same_bits(std::get<0>(after), std::get<0>(before)));
        CHECK(same_bits(std::get<1>(after), std::get<1>(before)));
        CHECK(same_bits(std::get<2>(after), std::get<2>(before)));
        CHECK(same_bits(std::get<3>(after), std::get<3>(before)));
      }
    }
  }
}

}  // namespace gluon_syncbn::tests

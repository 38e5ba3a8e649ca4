// What a layer computes of given statistics and sums, with all activations, by a shortcut and in
// place.

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

/// What tells dz: the input, the output, or, in place, the output alone.
enum class By { kInput, kOutput, kOutputAlone };

/// A layer on one device whose batch has given moments and sums. Gradients are 0 where rounding
/// decides on which side of its kink the activation is. Any output will do where ELU is not flat.
template <class T>
struct Case {
  using R = Real<T>;
  static constexpr double kCount = 7;

  Case(cuda::Stream* stream_in, const Layout& layout_in, const Activation& activation_in,
       std::uint32_t seed)
      : stream(stream_in),
        layout(layout_in),
        activation(activation_in),
        fix_gamma(seed % 4 == 0),
        of_batch(seed % 6 != 0),
        workspace(stream),
        x(layout, mean_of(seed), 1, seed),
        y(layout, 0, 1, seed + 1),
        dy(layout, 0.1, 1, seed + 2),
        means(means_near(layout, mean_of(seed), seed)),
        m2(parameters(layout, 5, seed + 3)),
        gamma(as<R>(parameters(layout, seed % 2 ? 1.5 : -1.5, seed + 4))),
        beta(as<R>(parameters(layout, -0.5, seed + 5))),
        sums(message_of(parameters(layout, 3, seed + 6), parameters(layout, -2, 3))),
        forward(stream, message_of(means, m2), kCount, gamma, beta),
        normalizations(stream, std::vector<cuda::StoredAffine<R>>(means.size())),
        gamma_gradient(stream, gamma),
        beta_gradient(stream, gamma),
        merged_sums(stream, std::vector<double>(2 * means.size())),
        inv_std(stream, inv_stds()),
        mean(stream, means),
        message(stream, sums) {
    if (fix_gamma) forward.source.gamma = nullptr;
    const double least = activation.type == ActType::kElu ? -0.9 * activation.slope : -9;
    for (std::size_t i = 0; i < x.elements.size(); ++i) {
      if (std::fabs(z(i)) < 1e-3L) dy.elements[i] = T{};
      y.elements[i] = Type<T>::of(std::max(static_cast<double>(y.at(i)), least));
    }
    // Some arrays lie alike within 16 bytes, others do not.
    offset = seed % 3 == 0 ? seed / 3 % 8 : 0;
    other_offset = seed % 5 == 1 ? 1 : offset;
  }

  static double mean_of(std::uint32_t seed) {
    const double all[] = {0, 1, -37, 1e3, 1e4};
    return all[seed % 5];
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

  bool in_place() const { return by == By::kOutputAlone; }
  long double exact_inv_std(std::size_t c) const {
    return 1 / std::sqrt(static_cast<long double>(m2[c]) / kCount + forward.source.eps);
  }
  long double factor(std::size_t c) const {
    return (fix_gamma ? 1 : static_cast<long double>(gamma[c])) * exact_inv_std(c);
  }
  long double z(std::size_t i) const {
    const std::size_t c = x.channel(i);
    return (x.at(i) - means[c]) * factor(c) + beta[c];
  }
  /// Sum of the absolute terms of z, by what tells it. The logarithm makes an absolute error of a
  /// relative one.
  long double size_of_z(std::size_t i) const {
    const std::size_t c = x.channel(i);
    const long double shift = std::fabs(static_cast<long double>(beta[c]));
    if (!in_place()) return std::fabs((x.at(i) - means[c]) * factor(c)) + shift;
    const long double steep = activation.type == ActType::kElu ? 10 : 0;
    return std::fabs(inverse(activation, y.at(i))) + shift + steep;
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
  long double steepest() const { return std::max(1.0, activation.slope); }
  /// exp() makes a relative error of an absolute one.
  long double size_of_dz(std::size_t i) const {
    if (activation.type == ActType::kNone) return std::fabs(dz(i));
    if (in_place()) return std::fabs(dy.at(i)) * steepest();
    return std::fabs(dz(i)) * (1 + (by == By::kInput ? size_of_z(i) : std::fabs(y.at(i))));
  }

  /// Also leaves what By::kInput needs.
  void normalize(WriteMode write, bool adds_shortcut, std::vector<T>* out) {
    const DeviceArray<T> input(stream, x.elements, offset), output(stream, *out, offset);
    const DeviceArray<T> shortcut(stream, y.elements, other_offset);
    cuda::normalize(input.data(), layout, forward.source, write, output.data(), &workspace, stream,
                    {activation, adds_shortcut ? shortcut.data() : nullptr, normalizations.data()});
    *out = output.download();
  }
  void tell_by(By told_by) {
    by = told_by;
    std::vector<T> out(x.elements.size());
    if (by == By::kInput) normalize(WriteMode::kAssign, false, &out);
  }

  /// Calls run(dy, x, gate) with what is on the GPU.
  template <class Run>
  void on_gpu(const Run& run) {
    const DeviceArray<T> gradient(stream, dy.elements, offset), input(stream, x.elements, offset),
        output(stream, y.elements, in_place() ? offset : other_offset);
    cuda::Gate<T> gate{};
    gate.activation = activation;
    if (activation.type != ActType::kNone || in_place()) {
      if (by == By::kInput) gate.normalizations = normalizations.data();
      if (by != By::kInput) gate.y = output.data();
    }
    if (in_place()) {
      gate.inplace = true;
      gate.inv_std = inv_std.data();
      gate.gamma = forward.source.gamma;
      gate.beta = forward.source.beta;
    }
    run(gradient.data(), in_place() ? nullptr : input.data(), gate);
    stream->synchronize();
  }
  std::vector<double> gradient_sums() {
    const DeviceArray<double> found(stream, std::vector<double>(2 * means.size(), -1));
    on_gpu([&](const T* gradient, const T* input, const cuda::Gate<T>& gate) {
      cuda::gradient_sums(gradient, input, layout, mean.data(), &workspace, found.data(), stream,
                          gate);
    });
    return found.download();
  }
  void input_gradient(WriteMode write, T* dx, WriteMode write_shortcut = WriteMode::kAssign,
                      T* dshortcut = nullptr) {
    on_gpu([&](const T* gradient, const T* input, const cuda::Gate<T>& gate) {
      cuda::input_gradient(gradient, input, layout, source(), write, dx, &workspace, stream, gate,
                           write_shortcut, dshortcut);
    });
  }
  cuda::BackwardSource<R> source() {
    cuda::BackwardSource<R> source{};
    if (of_batch) source.messages.add(message.data(), layout.count());
    source.own = message.data();
    source.channels = layout.channels;
    source.mean = mean.data();
    source.inv_std = inv_std.data();
    source.gamma = forward.source.gamma;
    source.count = kCount;
    source.sums = merged_sums.data();
    source.gamma_gradient = {gamma_gradient.data(), false};
    source.beta_gradient = {beta_gradient.data(), true};
    return source;
  }

  cuda::Stream* stream;
  Layout layout;
  Activation activation;
  bool fix_gamma;
  bool of_batch;
  By by = By::kInput;
  Workspace workspace;
  Data<T> x;
  Data<T> y;  // and the shortcut
  Data<T> dy;
  std::vector<double> means;
  std::vector<double> m2;
  std::vector<R> gamma;
  std::vector<R> beta;
  std::vector<double> sums;
  ForwardArrays<R> forward;
  DeviceArray<cuda::StoredAffine<R>> normalizations;
  DeviceArray<R> gamma_gradient, beta_gradient;
  DeviceArray<double> merged_sums, inv_std, mean, message;
  std::size_t offset = 0;
  std::size_t other_offset = 0;
};

/// Calls try_case(Case*) for an activation on every layout, in turn.
template <class T, class Try>
void for_each_case(const Try& try_case) {
  cuda::Stream stream(0);
  std::uint32_t seed = 0;
  for_each_layout([&](const Layout& layout) {
    const Activation& activation = kActivationsAndNone[++seed * 5 / 3 % 6];
    CAPTURE(static_cast<int>(activation.type));
    CAPTURE(activation.slope);
    CAPTURE(seed);
    Case<T> given(&stream, layout, activation, seed);
    try_case(&given);
  });
}

/// The same for all that may tell dz.
template <class T, class Try>
void for_each_backward(const Try& try_case) {
  for_each_case<T>([&](Case<T>* given) {
    for (const By by : {By::kInput, By::kOutput, By::kOutputAlone}) {
      if (by == By::kOutputAlone && given->activation.type == ActType::kRelu) continue;
      CAPTURE(static_cast<int>(by));
      given->tell_by(by);
      try_case(given);
    }
  });
}

}  // namespace

TEST_CASE_TEMPLATE("cuda activations: outputs and statistics, with a shortcut and without", T,
                   float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  for_each_case<T>([](Case<T>* given) {
    for (const bool add : {false, true}) {
      const auto shortcut = [&](std::size_t i) { return add ? given->y.at(i) : 0; };
      check_output(
          given->x, [&](WriteMode write, std::vector<T>* y) { given->normalize(write, add, y); },
          [&](std::size_t i) { return activated(given->activation, given->z(i) + shortcut(i)); },
          [&](std::size_t i) {
            return given->steepest() * (given->size_of_z(i) + std::fabs(shortcut(i)));
          });
    }
    const std::vector<double> statistics = given->forward.statistics.download();
    const std::size_t channels = given->means.size();
    for (std::size_t c = 0; c < channels; ++c) {
      REQUIRE(statistics[c] == given->means[c]);
      REQUIRE(statistics[channels + c] == given->m2[c] / Case<T>::kCount);
      REQUIRE(statistics[2 * channels + c] ==
              doctest::Approx(static_cast<double>(given->exact_inv_std(c))).epsilon(1e-15));
    }
  });
}

TEST_CASE_TEMPLATE("cuda activations: gradient sums", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  for_each_backward<T>([](Case<T>* given) {
    const std::vector<double> found = given->gradient_sums();
    const std::size_t channels = given->means.size();
    std::vector<long double> first(channels), second(first), first_size(first), second_size(first);
    for (std::size_t i = 0; i < given->x.elements.size(); ++i) {
      const std::size_t c = given->x.channel(i);
      first[c] += given->dz(i);
      second[c] += given->dz(i) * given->centered(i);
      first_size[c] += given->size_of_dz(i);
      // The rest of the mean is taken off in the end, exactly.
      second_size[c] += given->size_of_dz(i) * given->size_of_centered(i) +
                        0x1p-24L * std::fabs(given->means[c] * given->dz(i));
    }
    for (std::size_t c = 0; c < channels; ++c) {
      REQUIRE(std::fabs(found[c] - first[c]) <= 4 * Type<T>::kUnit * first_size[c]);
      REQUIRE(std::fabs(found[channels + c] - second[c]) <= 4 * Type<T>::kUnit * second_size[c]);
    }
  });
}

TEST_CASE_TEMPLATE("cuda activations: gradients of all inputs", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  using R = Real<T>;
  for_each_backward<T>([](Case<T>* given) {
    const std::size_t channels = given->means.size();
    const auto share = [&](std::size_t c) {
      return given->of_batch ? -given->factor(c) / Case<T>::kCount : 0;
    };
    const auto slope = [&](std::size_t c) {
      return share(c) * given->sums[channels + c] * given->exact_inv_std(c) *
             given->exact_inv_std(c);
    };
    const auto check_dx = [&](const auto& run) {
      check_output(
          given->x, on_device<T>(given->stream, given->offset, run),
          [&](std::size_t i) {
            const std::size_t c = given->x.channel(i);
            return given->factor(c) * given->dz(i) + share(c) * given->sums[c] +
                   slope(c) * given->centered(i);
          },
          [&](std::size_t i) {
            const std::size_t c = given->x.channel(i);
            return std::fabs(given->factor(c)) * given->size_of_dz(i) +
                   std::fabs(share(c) * given->sums[c]) +
                   std::fabs(slope(c)) * given->size_of_centered(i);
          });
    };
    const auto check_dshortcut = [&](const auto& run) {
      check_output(
          given->x, on_device<T>(given->stream, given->other_offset, run),
          [&](std::size_t i) { return given->dz(i); },
          [&](std::size_t i) { return given->size_of_dz(i); });
    };
    const std::vector<R> before = given->beta_gradient.download();
    check_dx([&](WriteMode write, T* dx) { given->input_gradient(write, dx); });
    const std::vector<R> of_gamma = given->gamma_gradient.download();
    const std::vector<R> of_beta = given->beta_gradient.download();
    for (std::size_t c = 0; c < channels; ++c) {
      const double product =
          given->sums[channels + c] * static_cast<double>(given->exact_inv_std(c));
      REQUIRE(of_gamma[c] == static_cast<R>(product));
      // Both ways of writing dx have added to it.
      const R once = static_cast<R>(static_cast<double>(before[c]) + given->sums[c]);
      REQUIRE(of_beta[c] == static_cast<R>(static_cast<double>(once) + given->sums[c]));
    }
    if (given->by != By::kOutput) return;
    // Each alone, and both, of which one is added to.
    const WriteMode assign = WriteMode::kAssign;
    const DeviceArray<T> other(given->stream, given->x.elements);
    check_dx(
        [&](WriteMode write, T* dx) { given->input_gradient(write, dx, assign, other.data()); });
    check_dshortcut(
        [&](WriteMode write, T* to) { given->input_gradient(assign, nullptr, write, to); });
    check_dshortcut([&](WriteMode write, T* to) {
      given->input_gradient(WriteMode::kAdd, other.data(), write, to);
    });
  });
}

TEST_CASE_TEMPLATE("cuda activations: at 0 the slope is that from below", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  using R = Real<T>;
  cuda::Stream stream(0);
  for (const Layout& layout : {Layout{5, 6, 1}, Layout{2, 6, 49}, Layout{300, 1, 1},
                               Layout{33, 5, 17}, Layout{1, 3, 2049}, Layout{700, 9, 5}}) {
    if (layout.count() * layout.channels > 2 * kMostElements) continue;
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
      given.normalize(WriteMode::kAssign, false, &y);
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
      Case<T> given(&stream, layout, activation, 3);  // with a gamma above 0
      given.x.elements[0] = Type<T>::of(std::numeric_limits<double>::infinity());
      given.x.elements[20] = Type<T>::of(-std::numeric_limits<double>::infinity());
      given.x.elements[63] = Type<T>::of(std::numeric_limits<double>::quiet_NaN());
      std::vector<T> y(64);
      given.normalize(WriteMode::kAssign, false, &y);
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

TEST_CASE_TEMPLATE("cuda activations: in place, where ELU is flat and what is not finite", T, float,
                   double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for (const Layout& layout : {Layout{1, 1, 64}, Layout{64, 1, 1}}) {
    Case<T> given(&stream, layout, {ActType::kElu, 0.5}, 1);  // of a batch, with its gamma
    std::fill(given.dy.elements.begin(), given.dy.elements.end(), Type<T>::of(0));
    std::fill(given.y.elements.begin(), given.y.elements.end(), Type<T>::of(-0.5));
    given.y.elements[3] = Type<T>::of(-0.501);  // as rounding may leave it
    given.y.elements[20] = Type<T>::of(std::numeric_limits<double>::quiet_NaN());
    given.y.elements[21] = Type<T>::of(std::numeric_limits<double>::infinity());
    given.tell_by(By::kOutputAlone);
    const DeviceArray<T> on_gpu(&stream, given.y.elements);
    given.input_gradient(WriteMode::kAssign, on_gpu.data());
    const std::vector<T> dx = on_gpu.download();
    // No further below 0 than the dtype tells.
    const long double scaled = static_cast<long double>(kSaturation<T>) - given.beta[0];
    const long double expected = -given.exact_inv_std(0) / Case<T>::kCount *
                                 (given.gamma[0] * static_cast<long double>(given.sums[0]) +
                                  given.exact_inv_std(0) * given.sums[1] * scaled);
    for (std::size_t i = 0; i < 64; ++i) {
      CAPTURE(i);
      const auto found = static_cast<double>(Type<T>::value(dx[i]));
      if (i == 20) {
        CHECK(std::isnan(found));
      } else if (i == 21) {
        CHECK(std::isinf(found));
      } else {
        CHECK(found == doctest::Approx(static_cast<double>(expected)).epsilon(1e-3));
      }
    }
  }
}

TEST_CASE_TEMPLATE("cuda activations: the same bits every time", T, float, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for (const Layout& layout :
       {Layout{3, 65, 49}, Layout{3000, 65, 1}, Layout{2, 2, 9973}, Layout{700, 64, 5}}) {
    if (layout.count() * layout.channels > 8 * kMostElements) continue;
    for (const By by : {By::kInput, By::kOutput, By::kOutputAlone}) {
      const auto run = [&] {
        Case<T> given(&stream, layout, {ActType::kElu, 1}, 5);
        given.tell_by(by);
        std::vector<T> y(given.x.elements.size());
        given.normalize(WriteMode::kAssign, by == By::kOutput, &y);
        const DeviceArray<T> dx(&stream, y), dshortcut(&stream, y);
        given.input_gradient(WriteMode::kAssign, dx.data(), WriteMode::kAssign,
                             by == By::kOutput ? dshortcut.data() : nullptr);
        return std::make_tuple(y, given.gradient_sums(), dx.download(), dshortcut.download());
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

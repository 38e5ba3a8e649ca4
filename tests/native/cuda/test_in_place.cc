// The phases of backward in place, where there is no input, and the check that the output tells it.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "common/error.h"
#include "cpu/channel_math.h"
#include "cuda/device_array.h"
#include "cuda/gpu.h"
#include "cuda/invertible_check.h"
#include "cuda/kernels/phases.h"
#include "cuda/needs_gpu.h"
#include "cuda/phase_arrays.h"
#include "cuda/shard.h"
#include "norm/activation.h"
#include "norm/backend.h"
#include "support/activations.h"
#include "support/arrays.h"
#include "support/outputs.h"
#include "support/ranks.h"
#include "support/values.h"

namespace gluon_syncbn::tests {
namespace {

const Activation kInvertible[] = {
    {}, {ActType::kLeaky, 0.1}, {ActType::kLeaky, 3}, {ActType::kElu, 1}, {ActType::kElu, 0.4}};

/// A layer on one device by its output: any will do where ELU is not flat.
template <class T>
struct Case {
  using R = Real<T>;
  static constexpr double kCount = 7;

  Case(cuda::Stream* stream_in, const Layout& layout, const Activation& activation_in,
       std::uint32_t seed)
      : stream(stream_in),
        activation(activation_in),
        fix_gamma(seed % 4 == 0),
        of_batch(seed % 3 != 0),
        workspace(stream),
        y(layout, 0.2, 0.5, seed),
        dy(layout, 0.1, 1, seed + 1),
        gamma(as<R>(parameters(layout, seed % 2 ? 1.5 : -1.5, seed + 2))),
        beta(as<R>(parameters(layout, -0.5, seed + 3))),
        inv_std(parameters(layout, 2, seed + 4)),
        message(parameters(layout, 3, seed + 5)),
        means(stream, means_near(layout, 1000, seed)),
        on_device_gamma(stream, gamma),
        on_device_beta(stream, beta),
        on_device_inv_std(stream, inv_std),
        sums(stream, std::vector<double>(2 * gamma.size())),
        gamma_gradient(stream, std::vector<R>(gamma.size())),
        beta_gradient(stream, std::vector<R>(gamma.size())) {
    const std::vector<double> second = parameters(layout, -2, seed + 6);
    message.insert(message.end(), second.begin(), second.end());
    const double least = activation.type == ActType::kElu ? -0.9 * activation.slope : -9;
    for (T& element : y.elements) {
      element = Type<T>::of(std::max(static_cast<double>(Type<T>::value(element)), least));
    }
    // Some arrays lie alike within 16 bytes, others do not.
    offset = seed % 3 == 0 ? seed / 3 % 8 : 0;
    other_offset = seed % 5 == 1 ? 1 : offset;
  }

  long double dz(std::size_t i) const { return dy.at(i) * steepness_at(activation, y.at(i)); }
  long double gamma_of(std::size_t c) const { return fix_gamma ? 1 : gamma[c]; }
  /// (x - mean) / sqrt(variance + eps)
  long double normalized(std::size_t i) const {
    const std::size_t c = y.channel(i);
    return (inverse(activation, y.at(i)) - beta[c]) / gamma_of(c);
  }
  long double centered(std::size_t i) const { return normalized(i) / inv_std[y.channel(i)]; }
  /// Of normalized(i): the logarithm makes an absolute error of a relative one.
  long double magnitude(std::size_t i) const {
    const std::size_t c = y.channel(i);
    const long double z = inverse(activation, y.at(i));
    const long double steep = activation.type == ActType::kElu ? 10 : 0;
    return (std::fabs(z) + std::fabs(static_cast<long double>(beta[c])) + steep) /
           std::fabs(gamma_of(c));
  }

  cuda::Gate<T> gate(const T* output) const {
    return {activation,           output, nullptr, true, on_device_inv_std.data(), gamma_or_null(),
            on_device_beta.data()};
  }
  const R* gamma_or_null() const { return fix_gamma ? nullptr : on_device_gamma.data(); }

  void run_sums(const DeviceArray<double>& to) {
    const DeviceArray<T> gradient(stream, dy.elements, offset), output(stream, y.elements, offset);
    const T* no_input = nullptr;
    cuda::gradient_sums(gradient.data(), no_input, y.layout, means.data(), &workspace, to.data(),
                        stream, gate(output.data()));
    to.download();
  }
  void run_gradient(WriteMode write, std::vector<T>* dx) {
    const DeviceArray<T> gradient(stream, dy.elements, offset), output(stream, y.elements, offset);
    const DeviceArray<T> out(stream, *dx, other_offset);
    const DeviceArray<double> own(stream, message);
    cuda::BackwardSource<R> source{};
    source.messages.values[0] = own.data();
    source.messages.size = of_batch ? 1 : 0;
    source.own = own.data();
    source.channels = y.layout.channels;
    source.mean = means.data();
    source.inv_std = on_device_inv_std.data();
    source.gamma = gamma_or_null();
    source.count = kCount;
    source.sums = sums.data();
    source.gamma_gradient = {gamma_gradient.data(), false};
    source.beta_gradient = {beta_gradient.data(), false};
    const T* no_input = nullptr;
    cuda::input_gradient(gradient.data(), no_input, y.layout, source, write, out.data(), &workspace,
                         stream, gate(output.data()));
    *dx = out.download();
  }

  cuda::Stream* stream;
  Activation activation;
  bool fix_gamma;
  bool of_batch;
  Workspace workspace;
  Data<T> y;
  Data<T> dy;
  std::vector<R> gamma, beta;
  std::vector<double> inv_std;
  std::vector<double> message;  // of sums
  DeviceArray<double> means;    // which nothing in place depends on
  DeviceArray<R> on_device_gamma, on_device_beta;
  DeviceArray<double> on_device_inv_std, sums;
  DeviceArray<R> gamma_gradient, beta_gradient;
  std::size_t offset = 0;
  std::size_t other_offset = 0;
};

/// What the check on a GPU says of parameters in its memory, or "".
template <class T>
std::string error_on_gpu(const Activation& activation, const std::vector<Real<T>>& gamma,
                         const std::vector<Real<T>>& beta, DType dtype) {
  const ShareGpus share;
  auto& gpu = cuda::Gpu::of(0);
  const DeviceArray<Real<T>> on_device_gamma(gpu.stream(), gamma);
  const DeviceArray<Real<T>> on_device_beta(gpu.stream(), beta);
  Backend::Backward pass;
  pass.data = {dtype, {2, static_cast<std::int64_t>(beta.size()), 3}};
  pass.activation = activation;
  pass.gamma = gamma.empty() ? nullptr : on_device_gamma.data();
  pass.beta = on_device_beta.data();
  const cuda::InvertibleCheck check(&gpu, pass);
  gpu.stream()->synchronize();
  return check.error();
}

/// The same by that of CPU contexts, which throws it.
template <class T>
std::string error_on_cpu(const Activation& activation, const std::vector<Real<T>>& gamma,
                         const std::vector<Real<T>>& beta, DType dtype) {
  Backend::Backward pass;
  pass.data = {dtype, {2, static_cast<std::int64_t>(beta.size()), 3}};
  pass.activation = activation;
  pass.gamma = gamma.empty() ? nullptr : gamma.data();
  pass.beta = beta.data();
  try {
    require_invertible(pass);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

template <class T>
constexpr DType kDType = std::is_same_v<T, double>  ? DType::kFloat64
                         : std::is_same_v<T, float> ? DType::kFloat32
                                                    : DType::kFloat16;

}  // namespace

TEST_CASE_TEMPLATE("cuda in place: gradient sums by the output alone", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  for_each_case<Case<T>>(kInvertible, [](Case<T>* given) {
    const std::size_t channels = given->gamma.size();
    const DeviceArray<double> to(given->stream, std::vector<double>(2 * channels, -1));
    given->run_sums(to);
    const std::vector<double> found = to.download();
    std::vector<long double> first(channels), second(first), first_size(first), second_size(first);
    for (std::size_t i = 0; i < given->y.elements.size(); ++i) {
      const std::size_t c = given->y.channel(i);
      const long double size = std::fabs(given->dy.at(i)) * std::max(1.0, given->activation.slope);
      first[c] += given->dz(i);
      second[c] += given->dz(i) * given->centered(i);
      first_size[c] += size;
      second_size[c] += size * given->magnitude(i) / given->inv_std[c];
    }
    for (std::size_t c = 0; c < channels; ++c) {
      REQUIRE(std::fabs(found[c] - first[c]) <= 4 * Type<T>::kUnit * first_size[c]);
      REQUIRE(std::fabs(found[channels + c] - second[c]) <= 4 * Type<T>::kUnit * second_size[c]);
    }
  });
}

TEST_CASE_TEMPLATE("cuda in place: the input gradient by the output alone", T, float, double,
                   Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  for_each_case<Case<T>>(kInvertible, [](Case<T>* given) {
    const auto terms = [&](std::size_t i) -> std::vector<long double> {
      const std::size_t c = given->y.channel(i);
      const long double factor = given->gamma_of(c) * given->inv_std[c];
      if (!given->of_batch) return {factor * given->dz(i), 0, 0};
      const long double share = -factor / Case<T>::kCount;
      const long double slope = share * given->message[given->gamma.size() + c] * given->inv_std[c];
      return {factor * given->dz(i), share * given->message[c], slope * given->normalized(i),
              slope * given->magnitude(i)};
    };
    check_output(
        given->y, [&](WriteMode write, std::vector<T>* dx) { given->run_gradient(write, dx); },
        [&](std::size_t i) {
          const auto of = terms(i);
          return of[0] + of[1] + of[2];
        },
        [&](std::size_t i) {
          const auto of = terms(i);
          const std::size_t c = given->y.channel(i);
          const long double direct = std::fabs(given->gamma_of(c) * given->inv_std[c]) *
                                     std::fabs(given->dy.at(i)) *
                                     std::max(1.0, given->activation.slope);
          return direct + std::fabs(of[1]) + std::fabs(of.back());
        });
  });
}

TEST_CASE_TEMPLATE("cuda in place: where ELU is flat, and what is not finite", T, float, double,
                   Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for (const Layout& layout : {Layout{1, 1, 64}, Layout{64, 1, 1}}) {
    Case<T> given(&stream, layout, {ActType::kElu, 0.5}, 1);  // of a batch, with its gamma
    std::fill(given.dy.elements.begin(), given.dy.elements.end(), Type<T>::of(0));
    std::fill(given.y.elements.begin(), given.y.elements.end(), Type<T>::of(-0.5));
    given.y.elements[3] = Type<T>::of(-0.501);  // as rounding may leave it
    given.y.elements[20] = Type<T>::of(std::numeric_limits<double>::quiet_NaN());
    given.y.elements[21] = Type<T>::of(std::numeric_limits<double>::infinity());
    std::vector<T> dx(64);
    given.run_gradient(WriteMode::kAssign, &dx);
    // No further below 0 than the dtype tells.
    const long double scaled = static_cast<long double>(kSaturation<T>) - given.beta[0];
    const long double expected = -given.inv_std[0] / Case<T>::kCount *
                                 (given.gamma[0] * static_cast<long double>(given.message[0]) +
                                  given.inv_std[0] * given.message[1] * scaled);
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

TEST_CASE_TEMPLATE("cuda in place: the same bits every time", T, float, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for (const Layout& layout :
       {Layout{3, 65, 49}, Layout{3000, 65, 1}, Layout{2, 2, 9973}, Layout{700, 64, 5}}) {
    if (layout.count() * layout.channels > 8 * kMostElements) continue;
    const auto run = [&] {
      Case<T> given(&stream, layout, {ActType::kElu, 1}, 5);
      const DeviceArray<double> to(&stream, std::vector<double>(2 * given.gamma.size(), -1));
      given.run_sums(to);
      std::vector<T> dx(given.y.elements.size());
      given.run_gradient(WriteMode::kAssign, &dx);
      return std::make_pair(to.download(), dx);
    };
    const auto before = run();
    for (const auto order : kOtherOrders) {
      const InOrder in_order(order);
      const auto after = run();
      CHECK(same_bits(after.first, before.first));
      CHECK(same_bits(after.second, before.second));
    }
  }
}

TEST_CASE_TEMPLATE("cuda in place: the check says what that of CPU contexts says", T, float, double,
                   Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  using R = Real<T>;
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double gammas[] = {0,    1e-300, 1e-36, 1e-20, -1e-9, 1e-6,     3e-5, -2e-4,
                           3e-4, 0.02,   -0.03, 1,     -1,    infinity, nan};
  int errors = 0;
  int tried = 0;
  for (const double gamma : gammas) {
    for (const double beta : {0.0, 1.0, -1.0, 5000.0, infinity, nan}) {
      for (const Activation& activation : {Activation{}, Activation{ActType::kLeaky, 1e-3}}) {
        const std::vector<R> all_gamma{R(1), R(gamma), R(1)}, all_beta{R(0.5), R(beta), R(-2)};
        const auto found = error_on_gpu<T>(activation, all_gamma, all_beta, kDType<T>);
        CHECK(found == error_on_cpu<T>(activation, all_gamma, all_beta, kDType<T>));
        if (!found.empty()) CHECK(contains(found, "channel 1 has gamma "));
        errors += !found.empty();
        ++tried;
      }
    }
  }
  CHECK(errors > tried / 5);
  CHECK(errors < tried * 4 / 5);
  // A gamma that is fixed is 1.
  for (const double beta : {0.5, 1e9, 1e20}) {
    const std::vector<R> all_beta{R(0), R(0), R(beta)};
    const auto found = error_on_gpu<T>({}, {}, all_beta, kDType<T>);
    CHECK(found == error_on_cpu<T>({}, {}, all_beta, kDType<T>));
    CHECK(found.empty() == (beta < 1 || (beta < 1e8 && std::is_same_v<T, double>)));
  }
}

TEST_CASE("cuda in place: of channels that are not invertible the first is named") {
  GLUON_SYNCBN_NEEDS_GPU();
  std::vector<float> gamma(700, 1), beta(700, 0);
  for (const std::size_t c : {699, 500, 271, 262, 650}) gamma[c] = 0;
  for (const auto order : kOtherOrders) {
    const InOrder in_order(order);
    CHECK(contains(error_on_gpu<float>({}, gamma, beta, DType::kFloat32), "channel 262 has"));
  }
}

}  // namespace gluon_syncbn::tests

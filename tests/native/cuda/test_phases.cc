// The four phases, on a GPU (cuda_tests) or with the kernels run in lockstep on the CPU
// (native_tests).

#include <doctest/doctest.h>

#include <array>
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
#include "support/arrays.h"
#include "support/outputs.h"
#include "support/values.h"

namespace gluon_syncbn::tests {
namespace {

std::vector<Layout> layouts() {
  std::vector<Layout> layouts;
  for (const std::int64_t inner : {1, 3, 7, 15, 16, 17, 49, 225, 3600}) {
    for (const std::int64_t channels : {1, 3, 65, 257}) {
      for (const std::int64_t outer : {1, 2, 5, 33}) {
        if (outer > 1 && outer * channels * inner > kMostElements) continue;
        layouts.push_back({outer, channels, inner});
      }
    }
  }
  // Several chunks, blocks that are full and not, columns that vectors do not divide.
  for (const Layout& large :
       {Layout{2, 1, 45000}, Layout{3, 2, 9973}, Layout{20000, 3, 1}, Layout{3000, 65, 1},
        Layout{1500, 64, 1}, Layout{700, 9, 5}, Layout{230000, 1, 1}}) {
    if (large.count() * large.channels <= 8 * kMostElements) layouts.push_back(large);
  }
  return layouts;
}

template <class Try>
void for_each_case(const Try& try_case) {
  const double means[] = {0, 1, -37, 1e3, 1e4};
  std::uint32_t seed = 0;
  const std::vector<Layout> all = layouts();
  for (std::size_t i = 0; i < all.size(); i += kEvery) {
    const Layout& layout = all[i];
    const double mean = means[++seed % 5];
    const std::size_t offset = seed % 3 == 0 ? seed / 3 % 8 : 0;
    CAPTURE(layout.outer);
    CAPTURE(layout.channels);
    CAPTURE(layout.inner);
    CAPTURE(mean);
    CAPTURE(offset);
    try_case(layout, mean, seed, offset);
  }
}

template <class T>
std::vector<double> moments_of(cuda::Stream* stream, const Data<T>& x, std::size_t offset = 0) {
  Workspace workspace(stream);
  const DeviceArray<T> on_device(stream, x.elements, offset);
  const DeviceArray<double> message(stream,
                                    std::vector<double>(2 * std::size_t(x.layout.channels), -1));
  cuda::moments(on_device.data(), x.layout, &workspace, message.data(), stream);
  return message.download();
}

template <class T>
std::vector<double> sums_of(cuda::Stream* stream, const Data<T>& dy, const Data<T>& x,
                            const std::vector<double>& means, std::size_t dy_offset = 0,
                            std::size_t x_offset = 0) {
  Workspace workspace(stream);
  const DeviceArray<T> dy_on_device(stream, dy.elements, dy_offset);
  const DeviceArray<T> x_on_device(stream, x.elements, x_offset);
  const DeviceArray<double> mean(stream, means);
  const DeviceArray<double> message(stream, std::vector<double>(2 * means.size(), -1));
  cuda::gradient_sums(dy_on_device.data(), x_on_device.data(), x.layout, mean.data(), &workspace,
                      message.data(), stream);
  return message.download();
}

}  // namespace

TEST_CASE_TEMPLATE("cuda phases: moments", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for_each_case([&](const Layout& layout, double mean, std::uint32_t seed, std::size_t offset) {
    const Data<T> x(layout, mean, 1, seed);
    const std::vector<double> message = moments_of(&stream, x, offset);
    const Reference exact(x);
    const auto count = static_cast<long double>(layout.count());
    for (std::size_t c = 0; c < exact.mean.size(); ++c) {
      const long double deviation = std::sqrt(exact.m2[c] / count);
      // The rounding of sums of up to 32 deviations from a pivot, and of Chan's merge in double.
      const long double unit = Type<T>::kUnit;
      const long double in_double = 4e-15L * (std::fabs(exact.mean[c]) + deviation);
      const long double mean_tolerance = 4 * unit * deviation + in_double;
      const long double m2_tolerance =
          count * deviation * (8 * unit * deviation + in_double) + count * in_double * in_double;
      REQUIRE(std::fabs(message[c] - exact.mean[c]) <= mean_tolerance);
      REQUIRE(std::fabs(message[exact.mean.size() + c] - exact.m2[c]) <= m2_tolerance);
    }
  });
}

TEST_CASE_TEMPLATE("cuda phases: constant channels have no deviations", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for_each_case([&](const Layout& layout, double mean, std::uint32_t seed, std::size_t offset) {
    const Data<T> x(layout, mean, 0, seed);
    const std::vector<double> message = moments_of(&stream, x, offset);
    const auto channels = static_cast<std::size_t>(layout.channels);
    for (std::size_t c = 0; c < channels; ++c) {
      const auto value = static_cast<double>(x.at(c * static_cast<std::size_t>(layout.inner)));
      REQUIRE(message[c] == value);
      REQUIRE(message[channels + c] == 0);
    }
  });
}

TEST_CASE("cuda phases: a pivot that is an outlier does no harm") {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for (const Layout& layout :
       {Layout{2, 3, 5000}, Layout{2, 3, 4999}, Layout{9000, 3, 1}, Layout{200, 3, 7}}) {
    if (layout.count() * layout.channels > kMostElements) continue;
    // Pivots are among the first elements of every thread; an outlier is alone, or in all of those.
    for (const bool in_all : {false, true}) {
      Data<float> x(layout, 1, 1, 3);
      const auto inner = static_cast<std::size_t>(layout.inner);
      for (std::size_t c = 0; c < 3; ++c) x.elements[c * inner] = 1e4F;
      for (std::size_t i = 0; in_all && i < x.elements.size() / 9; ++i) {
        if (x.channel(i) == 1) x.elements[i] = i % 2 ? 1e4F : -1e4F;
      }
      const std::vector<double> message = moments_of(&stream, x);
      const Reference exact(x);
      for (std::size_t c = 0; c < 3; ++c) {
        const long double deviation = std::sqrt(exact.m2[c] / layout.count());
        CHECK(std::fabs(message[c] - exact.mean[c]) <= 2e-7L * deviation);
        CHECK(message[3 + c] == doctest::Approx(static_cast<double>(exact.m2[c])).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE_TEMPLATE("cuda phases: normalize", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  using R = Real<T>;
  cuda::Stream stream(0);
  Workspace workspace(&stream);
  for_each_case([&](const Layout& layout, double mean, std::uint32_t seed, std::size_t offset) {
    const Data<T> x(layout, mean, 1, seed);
    const std::vector<double> means = means_near(layout, mean, seed);
    const std::vector<double> m2 = parameters(layout, 5, seed + 1);
    const std::vector<R> gamma = as<R>(parameters(layout, 1, seed + 2));
    const std::vector<R> beta = as<R>(parameters(layout, -0.5, seed + 3));
    std::vector<double> message = means;
    message.insert(message.end(), m2.begin(), m2.end());
    const double count = 7;
    ForwardArrays<R> arrays(&stream, message, count, gamma, beta);
    const DeviceArray<T> x_on_device(&stream, x.elements, offset);
    const bool fix_gamma = seed % 4 == 0;
    if (fix_gamma) arrays.source.gamma = nullptr;
    const auto inv_std = [&](std::size_t c) {
      return 1 / std::sqrt(static_cast<long double>(m2[c]) / count + arrays.source.eps);
    };
    const auto scaled = [&](std::size_t i) {
      const std::size_t c = x.channel(i);
      const long double scale = fix_gamma ? 1 : static_cast<long double>(gamma[c]);
      return (x.at(i) - means[c]) * scale * inv_std(c);
    };
    const auto shift = [&](std::size_t i) -> long double { return beta[x.channel(i)]; };
    check_output(
        x,
        on_device<T>(&stream, seed % 5 == 1 ? 1 : offset,
                     [&](WriteMode write, T* y) {
                       cuda::normalize(x_on_device.data(), layout, arrays.source, write, y,
                                       &workspace, &stream);
                     }),
        [&](std::size_t i) { return scaled(i) + shift(i); },
        [&](std::size_t i) { return std::fabs(scaled(i)) + std::fabs(shift(i)); });
    const std::vector<double> statistics = arrays.statistics.download();
    for (std::size_t c = 0; c < means.size(); ++c) {
      REQUIRE(statistics[c] == means[c]);
      REQUIRE(statistics[means.size() + c] == m2[c] / count);
      REQUIRE(statistics[2 * means.size() + c] ==
              doctest::Approx(static_cast<double>(inv_std(c))).epsilon(1e-15));
    }
  });
}

TEST_CASE_TEMPLATE("cuda phases: gradient sums", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for_each_case([&](const Layout& layout, double mean, std::uint32_t seed, std::size_t offset) {
    const Data<T> x(layout, mean, 1, seed);
    const Data<T> dy(layout, 0.1, 1, seed + 1);
    const std::vector<double> means = means_near(layout, mean, seed);
    const std::vector<double> sums =
        sums_of(&stream, dy, x, means, seed % 5 == 1 ? 1 : offset, offset);
    std::vector<long double> first(means.size());
    std::vector<long double> second(means.size());
    std::vector<long double> first_magnitude(means.size());
    std::vector<long double> second_magnitude(means.size());
    for (std::size_t i = 0; i < x.elements.size(); ++i) {
      const std::size_t c = x.channel(i);
      const long double centered = dy.at(i) * (x.at(i) - means[c]);
      first[c] += dy.at(i);
      second[c] += centered;
      first_magnitude[c] += std::fabs(dy.at(i));
      // The rest of the mean is taken off in the end, exactly.
      second_magnitude[c] += std::fabs(centered) + 0x1p-24L * std::fabs(means[c] * dy.at(i));
    }
    for (std::size_t c = 0; c < means.size(); ++c) {
      REQUIRE(std::fabs(sums[c] - first[c]) <= 4 * Type<T>::kUnit * first_magnitude[c]);
      REQUIRE(std::fabs(sums[means.size() + c] - second[c]) <=
              4 * Type<T>::kUnit * second_magnitude[c]);
    }
  });
}

TEST_CASE_TEMPLATE("cuda phases: input gradient", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  using R = Real<T>;
  cuda::Stream stream(0);
  Workspace workspace(&stream);
  for_each_case([&](const Layout& layout, double mean, std::uint32_t seed, std::size_t offset) {
    const Data<T> x(layout, mean, 1, seed);
    const Data<T> dy(layout, 0.1, 1, seed + 1);
    const std::vector<double> means = means_near(layout, mean, seed);
    const std::vector<double> inv_std = parameters(layout, 1, seed + 1);
    const std::vector<R> gamma = as<R>(parameters(layout, 1, seed + 2));
    const std::vector<double> sum = parameters(layout, 3, seed + 3);
    const std::vector<double> centered = parameters(layout, -2, seed + 4);
    const double count = 7;
    const DeviceArray<T> x_on_device(&stream, x.elements, offset);
    const DeviceArray<T> dy_on_device(&stream, dy.elements, seed % 5 == 1 ? 1 : offset);
    const DeviceArray<double> mean_on_device(&stream, means);
    const DeviceArray<double> inv_std_on_device(&stream, inv_std);
    const DeviceArray<R> gamma_on_device(&stream, gamma);
    std::vector<double> message = sum;
    message.insert(message.end(), centered.begin(), centered.end());
    const DeviceArray<double> message_on_device(&stream, message);
    const DeviceArray<double> sums(&stream, std::vector<double>(message.size(), -1));
    const DeviceArray<R> gamma_gradient(&stream, gamma);
    const DeviceArray<R> beta_gradient(&stream, gamma);
    const bool constants = seed % 6 == 0;
    cuda::BackwardSource<R> source{};
    source.messages.values[0] = message_on_device.data();
    source.messages.size = constants ? 0 : 1;
    source.own = message_on_device.data();
    source.channels = layout.channels;
    source.mean = mean_on_device.data();
    source.inv_std = inv_std_on_device.data();
    source.gamma = gamma_on_device.data();
    source.count = count;
    source.sums = sums.data();
    source.gamma_gradient = {gamma_gradient.data(), false};
    source.beta_gradient = {beta_gradient.data(), true};
    const auto terms = [&](std::size_t i) {
      const std::size_t c = x.channel(i);
      const long double factor = static_cast<long double>(gamma[c]) * inv_std[c];
      std::array<long double, 3> terms{factor * dy.at(i), 0, 0};
      if (!constants) {
        terms[1] = -factor / count * sum[c];
        terms[2] = -factor / count * centered[c] * inv_std[c] * inv_std[c] * (x.at(i) - means[c]);
      }
      return terms;
    };
    check_output(
        x,
        on_device<T>(&stream, offset,
                     [&](WriteMode write, T* dx) {
                       cuda::input_gradient(dy_on_device.data(), x_on_device.data(), layout, source,
                                            write, dx, &workspace, &stream);
                     }),
        [&](std::size_t i) {
          const auto t = terms(i);
          return t[0] + t[1] + t[2];
        },
        [&](std::size_t i) {
          const auto t = terms(i);
          return std::fabs(t[0]) + std::fabs(t[1]) + std::fabs(t[2]);
        });
    const std::vector<R> of_gamma = gamma_gradient.download();
    const std::vector<R> of_beta = beta_gradient.download();
    for (std::size_t c = 0; c < means.size(); ++c) {
      REQUIRE(of_gamma[c] == static_cast<R>(centered[c] * inv_std[c]));
      // Both ways of writing dx have added to it.
      const R once = static_cast<R>(static_cast<double>(gamma[c]) + sum[c]);
      REQUIRE(of_beta[c] == static_cast<R>(static_cast<double>(once) + sum[c]));
    }
  });
}

TEST_CASE_TEMPLATE("cuda phases: the same bits every time", T, float, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  using R = Real<T>;
  cuda::Stream stream(0);
  // One chunk and several; groups of chunks; channels in one column, and in several of many tiles.
  for (const Layout& layout :
       {Layout{3, 65, 49}, Layout{3000, 65, 1}, Layout{2, 2, 9973}, Layout{2, 3, 7},
        Layout{40000, 3, 1}, Layout{700, 64, 5}, Layout{230000, 1, 1}}) {
    if (layout.count() * layout.channels > 8 * kMostElements) continue;
    const Data<T> x(layout, 100, 1, 5);
    const Data<T> dy(layout, 0.1, 1, 6);
    const std::vector<double> means = means_near(layout, 100, 7);
    const std::vector<R> ones(means.size(), R(1));
    const DeviceArray<T> x_on_device(&stream, x.elements);
    const auto run = [&] {
      const std::vector<double> moments = moments_of(&stream, x);
      Workspace workspace(&stream);
      ForwardArrays<R> arrays(&stream, moments, 7, ones, ones);
      DeviceArray<R> running(&stream, ones);
      DeviceArray<R> num_batches(&stream, {R(2)});
      arrays.source.averages = {running.data(),     running.data(),        0,
                                num_batches.data(), workspace.counters(1), layout.channels};
      const DeviceArray<T> y(&stream, std::vector<T>(x.elements.size()));
      cuda::normalize(x_on_device.data(), layout, arrays.source, WriteMode::kAssign, y.data(),
                      &workspace, &stream);
      // Every channel has had its turn once, and then the number has grown.
      CHECK(num_batches.download() == std::vector<R>{R(3)});
      return std::make_tuple(moments, sums_of(&stream, dy, x, means), arrays.statistics.download(),
                             running.download(), y.download());
    };
    const auto before = run();
    for (const auto order : kOtherOrders) {
      const InOrder in_order(order);
      const auto after = run();
      CHECK(same_bits(std::get<0>(after), std::get<0>(before)));
      CHECK(same_bits(std::get<1>(after), std::get<1>(before)));
      CHECK(same_bits(std::get<2>(after), std::get<2>(before)));
      CHECK(std::get<3>(after) == std::get<3>(before));
      CHECK(same_bits(std::get<4>(after), std::get<4>(before)));
    }
  }
}

TEST_CASE("cuda phases: arrays without elements have zero moments and sums") {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for (const Layout& layout : {Layout{0, 3, 49}, Layout{2, 3, 0}}) {
    const Data<float> x(layout, 1, 1, 5);
    CHECK(moments_of(&stream, x) == std::vector<double>(6, 0.0));
    CHECK(sums_of(&stream, x, x, {1, 2, 3}) == std::vector<double>(6, 0.0));
  }
}

TEST_CASE("cuda phases: what is not a number stays in its channel") {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for (const Layout& layout : {Layout{2, 6, 49}, Layout{40, 6, 1}, Layout{3, 6, 2049}}) {
    const Data<float> clean(layout, 1, 1, 5);
    Data<float> x = clean;
    const auto at = static_cast<std::size_t>(layout.inner * (layout.channels + 2));
    x.elements[at] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<double> message = moments_of(&stream, x);
    const std::vector<double> expected = moments_of(&stream, clean);
    for (std::size_t i = 0; i < message.size(); ++i) {
      CHECK((i % 6 == 2 ? std::isnan(message[i]) : message[i] == expected[i]));
    }
  }
}

}  // namespace gluon_syncbn::tests

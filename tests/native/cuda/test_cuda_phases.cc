// The four phases, on a GPU (cuda_tests) or with the kernels run in lockstep on the CPU
// (native_tests).

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "arrays.h"
#include "core/cuda/phases.h"
#include "cuda/device_array.h"
#include "cuda/gpu.h"
#include "outputs.h"

namespace gluon_syncbn::tests {
namespace {

/// Scratch memory of one call after another.
class Rooms {
 public:
  explicit Rooms(int ordinal) : ordinal_(ordinal) {}
  cuda::Scratch scratch() {
    return [this](std::size_t doubles) {
      rooms_.push_back(std::make_unique<cuda::Memory>(cuda::Memory::Place::kDevice, ordinal_,
                                                      doubles * sizeof(double)));
      return static_cast<double*>(rooms_.back()->data());
    };
  }

 private:
  int ordinal_;
  std::vector<std::unique_ptr<cuda::Memory>> rooms_;
};

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
  for (const Layout& large : {Layout{2, 1, 45000}, Layout{3, 2, 9973}, Layout{20000, 3, 1},
                              Layout{3000, 65, 1}, Layout{1500, 64, 1}, Layout{700, 9, 5}}) {
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
  Rooms rooms(stream->ordinal());
  const DeviceArray<T> on_device(stream, x.elements, offset);
  const DeviceArray<double> message(stream,
                                    std::vector<double>(2 * std::size_t(x.layout.channels), -1));
  cuda::moments(on_device.data(), x.layout, rooms.scratch(), message.data(), stream);
  return message.download();
}

template <class T>
std::vector<double> sums_of(cuda::Stream* stream, const Data<T>& dy, const Data<T>& x,
                            const std::vector<double>& means, std::size_t dy_offset = 0,
                            std::size_t x_offset = 0) {
  Rooms rooms(stream->ordinal());
  const DeviceArray<T> dy_on_device(stream, dy.elements, dy_offset);
  const DeviceArray<T> x_on_device(stream, x.elements, x_offset);
  const DeviceArray<double> mean(stream, means);
  const DeviceArray<double> message(stream, std::vector<double>(2 * means.size(), -1));
  cuda::gradient_sums(dy_on_device.data(), x_on_device.data(), x.layout, mean.data(),
                      rooms.scratch(), message.data(), stream);
  return message.download();
}

template <class R>
std::vector<R> as(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

/// kernel(write, out) for an array on the GPU that begins as `out` and comes back in it.
template <class T, class Kernel>
auto on_device(cuda::Stream* stream, std::size_t offset, const Kernel& kernel) {
  return [=](Write write, std::vector<T>* out) {
    const DeviceArray<T> array(stream, *out, offset);
    kernel(write, array.data());
    *out = array.download();
  };
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
  for (const Layout& layout : {Layout{2, 3, 5000}, Layout{9000, 3, 1}}) {
    Data<float> x(layout, 1, 1, 3);
    for (std::size_t c = 0; c < 3; ++c) {
      x.elements[c * static_cast<std::size_t>(layout.inner)] = 1e4F;
    }
    const std::vector<double> message = moments_of(&stream, x);
    const Reference exact(x);
    for (std::size_t c = 0; c < 3; ++c) {
      CHECK(message[c] == doctest::Approx(static_cast<double>(exact.mean[c])).epsilon(1e-6));
      CHECK(message[3 + c] == doctest::Approx(static_cast<double>(exact.m2[c])).epsilon(1e-6));
    }
  }
}

TEST_CASE_TEMPLATE("cuda phases: normalize", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  using R = Real<T>;
  cuda::Stream stream(0);
  for_each_case([&](const Layout& layout, double mean, std::uint32_t seed, std::size_t offset) {
    const Data<T> x(layout, mean, 1, seed);
    const std::vector<double> means = means_near(layout, mean, seed);
    const std::vector<double> inv_std = parameters(layout, 1, seed + 1);
    const std::vector<R> gamma = as<R>(parameters(layout, 1, seed + 2));
    const std::vector<R> beta = as<R>(parameters(layout, -0.5, seed + 3));
    const DeviceArray<T> x_on_device(&stream, x.elements, offset);
    const DeviceArray<double> mean_on_device(&stream, means);
    const DeviceArray<double> inv_std_on_device(&stream, inv_std);
    const DeviceArray<R> gamma_on_device(&stream, gamma);
    const DeviceArray<R> beta_on_device(&stream, beta);
    const bool fix_gamma = seed % 4 == 0;
    const cuda::AffineSource<R> source{mean_on_device.data(), inv_std_on_device.data(),
                                       fix_gamma ? nullptr : gamma_on_device.data(),
                                       beta_on_device.data()};
    const auto scaled = [&](std::size_t i) {
      const std::size_t c = x.channel(i);
      const long double scale = fix_gamma ? 1 : static_cast<long double>(gamma[c]);
      return (x.at(i) - means[c]) * scale * inv_std[c];
    };
    const auto shift = [&](std::size_t i) -> long double { return beta[x.channel(i)]; };
    check_output(
        x,
        on_device<T>(&stream, seed % 5 == 1 ? 1 : offset,
                     [&](Write write, T* y) {
                       cuda::normalize(x_on_device.data(), layout, source, write, y, &stream);
                     }),
        [&](std::size_t i) { return scaled(i) + shift(i); },
        [&](std::size_t i) { return std::fabs(scaled(i)) + std::fabs(shift(i)); });
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
    const DeviceArray<double> sum_on_device(&stream, sum);
    const DeviceArray<double> centered_on_device(&stream, centered);
    const bool constants = seed % 6 == 0;
    const cuda::GradientSource<R> source{
        mean_on_device.data(),     inv_std_on_device.data(),
        gamma_on_device.data(),    constants ? nullptr : sum_on_device.data(),
        centered_on_device.data(), count};
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
                     [&](Write write, T* dx) {
                       cuda::input_gradient(dy_on_device.data(), x_on_device.data(), layout, source,
                                            write, dx, &stream);
                     }),
        [&](std::size_t i) {
          const auto t = terms(i);
          return t[0] + t[1] + t[2];
        },
        [&](std::size_t i) {
          const auto t = terms(i);
          return std::fabs(t[0]) + std::fabs(t[1]) + std::fabs(t[2]);
        });
  });
}

TEST_CASE_TEMPLATE("cuda phases: the same bits every time", T, float, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for (const Layout& layout : {Layout{3, 65, 49}, Layout{3000, 65, 1}, Layout{2, 2, 9973}}) {
    const Data<T> x(layout, 100, 1, 5);
    const Data<T> dy(layout, 0.1, 1, 6);
    const std::vector<double> means = means_near(layout, 100, 7);
    const std::vector<double> moments = moments_of(&stream, x);
    const std::vector<double> sums = sums_of(&stream, dy, x, means);
    for (int again = 0; again < 3; ++again) {
      // Where threads are emulated, they take every step the other way round.
      const OtherThreadOrder other;
      CHECK(same_bits(moments_of(&stream, x), moments));
      CHECK(same_bits(sums_of(&stream, dy, x, means), sums));
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

// Moments, and what all phases have in common, on a GPU (cuda_tests) or with the kernels run in
// lockstep on the CPU (native_tests).

#include <doctest/doctest.h>

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
                            const std::vector<double>& means) {
  Workspace workspace(stream);
  const DeviceArray<T> dy_on_device(stream, dy.elements);
  const DeviceArray<T> x_on_device(stream, x.elements);
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
  for_each_layout(gpu_layouts(), [&](const Layout& layout, std::uint32_t number) {
    const Data<T> x(layout, mean_of(number), 1, 3);
    // Sums of up to 32 deviations from a pivot are rounded.
    check_moments(x, moments_of(&stream, x, offset_of(number)), Type<T>::kUnit);
  });
}

TEST_CASE_TEMPLATE("cuda phases: constant channels have no deviations", T, float, double, Half) {
  GLUON_SYNCBN_NEEDS_GPU();
  cuda::Stream stream(0);
  for_each_layout(gpu_layouts(), [&](const Layout& layout, std::uint32_t number) {
    const Data<T> x(layout, mean_of(number), 0, 3);
    check_constant(x, moments_of(&stream, x, offset_of(number)));
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
    check_same_in_all_orders(run);
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

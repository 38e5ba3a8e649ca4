#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "common/layout.h"
#include "cpu/cpu_kernels.h"
#include "cpu/tuning.h"
#include "norm/partial_statistics.h"
#include "norm/variants.h"
#include "support/arrays.h"
#include "support/kernel_tests.h"
#include "support/oracle.h"
#include "support/values.h"

namespace gluon_syncbn::tests {
namespace {

const Layout kSmallLayouts[] = {{5, 6, 1}, {3, 6, 7}, {2, 6, 49}, {40, 6, 1}, {1, 6, 2049}};

/// Of a layout whose data have a mean of 10.
template <class T>
cpu::Numbers<T> numbers_of(const Layout& layout) {
  return {means_near(layout, 10, 6), parameters(layout, 1, 7),
          as<Real<T>>(parameters(layout, 0, 8))};
}

/// Of a layer without an activation.
template <class T>
BackwardInputs<T> inputs(const T* dy, const T* x) {
  return {DzFrom::kDy, {}, {dy, x, dy}};
}

}  // namespace

GLUON_SYNCBN_KERNEL_TESTS("kernels", GLUON_SYNCBN_CPU_KERNELS)

TEST_CASE_TEMPLATE("kernels: far outliers first, and a mean that moves", Kernels,
                   GLUON_SYNCBN_CPU_KERNELS) {
  Kernels kernels;
  test_outliers(&kernels);
}

// docs/limits.md states this bound.
TEST_CASE("kernels: float64 devices with a mean far from zero") {
  for (const Layout& layout :
       {Layout{64, 1, 1}, Layout{100000, 1, 1}, Layout{3000, 3, 5}, Layout{4, 2, 5000}}) {
    for (const double mean : {0.0, 1e3, 1e6, 1e9}) {
      for (const std::uint32_t devices : {1, 2, 8}) {
        CAPTURE(layout.outer);
        CAPTURE(mean);
        CAPTURE(devices);
        std::vector<PartialStatistics> parts;
        Tensor batch;
        for (std::uint32_t device = 0; device < devices; ++device) {
          const Layout own{layout.outer >> device % 3, layout.channels, layout.inner};
          // The means of the devices are about a standard deviation apart.
          const Data<double> x(own, mean + Normal(device)(0, 1), 1, device);
          parts.push_back(cpu::moments(x.data(), own));
          batch.layouts.push_back(own);
          batch.shards.push_back(x.values());
        }
        const auto merged = merge(Direction::kForward, parts);
        const ExactMoments exact(batch);
        for (std::size_t c = 0; c < batch.channels(); ++c) {
          const long double deviation = std::sqrt(exact.m2[c] / batch.count());
          const long double error = 1e-15L * (2 + std::fabs(exact.mean[c]) / deviation);
          CHECK(std::fabs(merged.mean()[c] - exact.mean[c]) <= error * deviation);
          CHECK(std::fabs(merged.m2()[c] - exact.m2[c]) <= error * exact.m2[c]);
        }
      }
    }
  }
}

TEST_CASE("kernels: beside an array without runs, the others have parts for all threads") {
  // A channel of the first array is more than a thread takes at a time.
  const std::vector<Layout> layouts{{2, 67, cpu::kMostGrain}, {40, 67, 1}, {1, 67, 17}};
  const std::vector<std::int64_t> numbers{67, 1, 1};
  cpu::for_each_part(layouts, [&](cpu::Channels channels) {
    CHECK(channels.end - channels.begin == 67);
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      std::vector<std::atomic<int>> visits(67);
      std::atomic<std::int64_t> parts{0};
      cpu::for_each_part_of(layouts, i, channels, [&](cpu::Channels part) {
        ++parts;
        for (auto c = part.begin; c < part.end; ++c) ++visits[static_cast<std::size_t>(c)];
      });
      CHECK(std::all_of(visits.begin(), visits.end(), [](int number) { return number == 1; }));
      CHECK(parts.load() == numbers[i]);
    }
  });
}

TEST_CASE("kernels: arrays with runs are divided once") {
  const std::vector<Layout> layouts{{2, 67, 8000}, {1, 67, 17}};
  cpu::for_each_part(layouts, [&](cpu::Channels channels) {
    std::vector<cpu::Channels> parts;
    cpu::for_each_part_of(layouts, 0, channels, [&](cpu::Channels part) { parts.push_back(part); });
    const bool is_whole = parts.size() == 1 && parts.front().begin == channels.begin &&
                          parts.front().end == channels.end;
    if (!is_whole) throw std::logic_error("the channels were divided twice");
  });
}

TEST_CASE_TEMPLATE("kernels: the same bits with any number of threads", Kernels,
                   GLUON_SYNCBN_CPU_KERNELS) {
  // Parts of runs depend on the number of threads.
  Kernels kernels;
  test_same_bits(&kernels, {{2, 40, 7000}, {13000, 30, 1}, {20000, 3, 5}, {180, 61, 49}}, {{}});
}

TEST_CASE_TEMPLATE("kernels: the same bits wherever arrays lie", Kernels,
                   GLUON_SYNCBN_CPU_KERNELS) {
  using T = typename Kernels::Element;
  const Kernels kernels;
  for (const Layout& layout : kSmallLayouts) {
    const LayerCase<T> given(layout, {}, 5);
    const auto expected = everything(given, 0, &kernels);
    for (std::uint32_t offset = 1; offset < 8; ++offset) {
      CHECK(same_bits(everything(given, offset, &kernels), expected));
    }
  }
}

TEST_CASE_TEMPLATE("kernels: outputs may be their own inputs", Kernels, GLUON_SYNCBN_CPU_KERNELS) {
  using T = typename Kernels::Element;
  const Kernels kernels;
  for (const Layout& layout : kSmallLayouts) {
    const Data<T> x(layout, 10, 1, 5);
    const auto n = numbers_of<T>(layout);
    std::vector<T> expected(x.elements.size());
    cpu::normalize(x.data(), layout, n, WriteMode::kAssign, expected.data());
    std::vector<T> in_place = x.elements;
    cpu::normalize(in_place.data(), layout, n, WriteMode::kAssign, in_place.data());
    CHECK(same_bits(in_place, expected));

    const Data<T> dy(layout, 0, 1, 9);
    const auto sums = statistics_of(0, n.inv_std, n.mean);
    cpu::input_gradient<T>(inputs<T>(dy.data(), x.data()), layout, n, sums, 7, WriteMode::kAssign,
                           expected.data());
    in_place = dy.elements;
    cpu::input_gradient<T>(inputs<T>(in_place.data(), x.data()), layout, n, sums, 7,
                           WriteMode::kAssign, in_place.data());
    CHECK(same_bits(in_place, expected));
  }
}

TEST_CASE_TEMPLATE("kernels: large outputs, which are written past the caches", Kernels,
                   GLUON_SYNCBN_CPU_KERNELS) {
  using T = typename Kernels::Element;
  const Kernels kernels;
  for (const Layout& layout : {Layout{1, 3, 1000003}, Layout{1500001, 3, 1}}) {
    const Data<T> x(layout, 10, 1, 5);
    const Data<T> dy(layout, 0, 1, 6);
    const auto n = numbers_of<T>(layout);
    const auto sums = statistics_of(0, n.inv_std, n.mean);
    for (const std::size_t offset : {0, 1, 3}) {
      // Adding to zero gives the same numbers by ordinary stores.
      std::vector<T> expected(x.elements.size());
      std::vector<T> out(x.elements.size() + offset + 1);
      const T past = Type<T>::of(77);
      out.back() = past;
      cpu::normalize(x.data(), layout, n, WriteMode::kAdd, expected.data());
      cpu::normalize(x.data(), layout, n, WriteMode::kAssign, out.data() + offset);
      CHECK(std::memcmp(out.data() + offset, expected.data(), expected.size() * sizeof(T)) == 0);
      expected.assign(expected.size(), T{});
      cpu::input_gradient<T>(inputs<T>(dy.data(), x.data()), layout, n, sums, 7, WriteMode::kAdd,
                             expected.data());
      cpu::input_gradient<T>(inputs<T>(dy.data(), x.data()), layout, n, sums, 7, WriteMode::kAssign,
                             out.data() + offset);
      CHECK(std::memcmp(out.data() + offset, expected.data(), expected.size() * sizeof(T)) == 0);
      CHECK(std::memcmp(&out.back(), &past, sizeof(T)) == 0);
    }
  }
}

}  // namespace gluon_syncbn::tests

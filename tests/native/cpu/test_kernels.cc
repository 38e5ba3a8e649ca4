#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "common/layout.h"
#include "cpu/cpu_kernels.h"
#include "cpu/tuning.h"
#include "norm/partial_statistics.h"
#include "support/arrays.h"
#include "support/kernel_tests.h"
#include "support/oracle.h"
#include "support/values.h"

namespace gluon_syncbn::tests {

GLUON_SYNCBN_KERNEL_TESTS("kernels", GLUON_SYNCBN_CPU_KERNELS)

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
          parts.push_back(moments_on_cpu(x.data(), own));
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

TEST_CASE_TEMPLATE("kernels: the same bits with any number of threads, wherever arrays lie",
                   Kernels, GLUON_SYNCBN_CPU_KERNELS) {
  Kernels kernels;
  // Outputs also lie in the place of their inputs.
  check_same_bits(&kernels, 16, {{5, 6, 1}, {3, 6, 7}, {2, 6, 49}, {40, 6, 1}, {1, 6, 2049}}, {{}});
  // Parts of runs depend on the number of threads. Large outputs are written past the caches.
  check_same_bits(&kernels, 4, {{2, 40, 26251}, {70001, 30, 1}, {20000, 3, 5}, {180, 61, 49}},
                  {{}});
}

}  // namespace gluon_syncbn::tests

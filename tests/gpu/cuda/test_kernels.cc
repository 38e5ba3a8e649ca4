// The kernels on a GPU (cuda_tests) or run in lockstep on the CPU (native_tests).

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/gpu_kernels.h"
#include "cuda/needs_gpu.h"
#include "norm/coefficients.h"
#include "support/array.h"
#include "support/arrays.h"
#include "support/kernel_tests.h"
#include "support/layer_case.h"

namespace gluon_syncbn::tests {

GLUON_SYNCBN_KERNEL_TESTS("cuda kernels", GpuKernels<float>, GpuKernels<double>, GpuKernels<Half>)

TEST_CASE("cuda kernels: devices merge means whose squares no double can hold") {
  GpuKernels<double> kernels;
  const std::vector<double> message{-3e200, 5, 2, 7};
  for (const std::size_t devices : {1, 2, 5}) {
    const Array<double> moments(kernels.stream(), message);
    const Array<double> statistics(kernels.stream(), std::vector<double>(4));
    const Array<double> beta(kernels.stream(), std::vector<double>(2));
    const Array<Affine<double>> normalizations(kernels.stream(), std::vector<Affine<double>>(2));
    cuda::Messages messages{};
    messages.add(moments.data(), 0);
    for (std::size_t i = 0; i < devices; ++i) messages.add(moments.data(), 4);
    Forward work;
    work.kind = {DType::kFloat64, {4, 2, 1}};
    work.eps = 1.5;
    work.beta = beta.data();
    const std::shared_ptr<void> kept_here;
    launch_outputs(work, messages,
                   {{kept_here, statistics.data()},
                    {kept_here, statistics.data() + 2},
                    {kept_here, normalizations.data()},
                    0},
                   launcher_of(kernels.stream()));
    const std::vector<double> found = statistics.values();
    CHECK(found[0] == -3e200);
    CHECK(found[1] == 5);
    CHECK(found[2] == 1 / std::sqrt(0.5 + work.eps));
    CHECK(found[3] == 1 / std::sqrt(1.75 + work.eps));
  }
}

TEST_CASE_TEMPLATE("cuda kernels: the same bits every time", T, float, Half) {
  GpuKernels<T> kernels;
  // One chunk, several and very many; channels in one column, and in several of many tiles.
  std::vector<Layout> layouts;
  for (const Layout& layout :
       {Layout{3, 65, 49}, Layout{3000, 65, 1}, Layout{2, 2, 9973}, Layout{2, 3, 7},
        Layout{40000, 3, 1}, Layout{700, 64, 5}, Layout{230000, 1, 1}}) {
    if (layout.count() * layout.channels <= 8 * kMostElements) layouts.push_back(layout);
  }
  check_same_bits(&kernels, 2, layouts, {{}, {ActType::kElu, 1}});
}

TEST_CASE_TEMPLATE("cuda kernels: gradients of parameters and of both inputs; statistics", T, float,
                   double, Half) {
  using R = Real<T>;
  GpuKernels<T> kernels;
  for_each_case(
      &kernels, usual_rows(kernels.layouts()), [&](auto* given, auto* phases, const Row& row) {
        const std::size_t channels = given->channels();
        const std::vector<double> kept = phases->kept();
        for (std::size_t c = 0; c < channels; ++c) {
          const double variance = given->m2[c] / given->kCount;
          REQUIRE(kept[c] == given->means[c]);
          REQUIRE(kept[channels + c] == doctest::Approx(given->inv_stds[c]).epsilon(1e-15));
          // The average over one batch.
          REQUIRE(kept[2 * channels + c] == static_cast<double>(static_cast<R>(given->means[c])));
          REQUIRE(kept[3 * channels + c] == static_cast<double>(static_cast<R>(variance)));
        }
        REQUIRE(kept[4 * channels] == 1);
        for_each_by(given, [&] {
          // That of beta is added to.
          const auto before = phases->beta_gradient();
          std::vector<T> ignored(given->x.elements.size());
          phases->input_gradient(WriteMode::kAssign, &ignored);
          const std::vector<R> of_gamma = phases->gamma_gradient(),
                               of_beta = phases->beta_gradient();
          for (std::size_t c = 0; c < channels; ++c) {
            REQUIRE(of_gamma[c] == static_cast<R>(given->sum_dz_centered[c] * given->inv_stds[c]));
            REQUIRE(of_beta[c] ==
                    static_cast<R>(static_cast<double>(before[c]) + given->sum_dz[c]));
          }
          if (given->by != By::kOutput) return;
          // That of the input together with that of the shortcut, one of which is added to.
          const Array<T> other(kernels.stream(), given->x.elements);
          const auto on_gpu = [&](const auto& kernel) {
            return [&](WriteMode write, std::vector<T>* out) {
              const Array<T> array(kernels.stream(), *out, row.number % 2);
              kernel(write, array.data());
              *out = array.values();
            };
          };
          check_dx(*given, on_gpu([&](WriteMode write, T* dx) {
            phases->gradients(write, dx, WriteMode::kAssign, other.data());
          }));
          check_dshortcut(*given, on_gpu([&](WriteMode write, T* dz) {
            phases->gradients(WriteMode::kAdd, other.data(), write, dz);
          }));
        });
      });
}

}  // namespace gluon_syncbn::tests

#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "common/dtype.h"
#include "common/half.h"
#include "cpu/kernels.h"
#include "cpu/simd/isa.h"
#include "cpu/thread_pool.h"
#include "norm/coefficients.h"
#include "norm/partial_statistics.h"
#include "norm/variants.h"
#include "support/array.h"
#include "support/arrays.h"
#include "support/kernel_tests.h"
#include "support/layer_case.h"
#include "support/values.h"

namespace gluon_syncbn::tests {

template <class T>
PartialStatistics moments_on_cpu(const T* x, const Layout& layout) {
  const auto result = PartialStatistics::zeros(layout.count(), layout.channels);
  cpu::for_each_part({layout}, [&](cpu::Channels part) { cpu::moments(x, layout, part, result); });
  return result;
}

/// What the kernels compute for a case, on all channels as a backend does; see kernel_tests.h.
template <class T>
class CpuPhases {
 public:
  CpuPhases(const LayerCase<T>& given, std::uint32_t number)
      : given_(given),
        offset_(number % 8),
        on_inputs_(number / 8 % 2 == 1),
        x_(nullptr, given.x.elements, offset_),
        y_(nullptr, given.y.elements, offset_),
        dy_(nullptr, given.dy.elements, offset_),
        sums_(statistics_of(0, given.sum_dz, given.sum_dz_centered)) {}

  void normalize(WriteMode write, bool adds_shortcut, std::vector<T>* y) const {
    write_to(write, x_, y, [&](const T* x, cpu::Channels part, cpu::StoreMode store, T* out) {
      cpu::normalize(x, given_.layout, part, parameters(), given_.activation, store, out,
                     adds_shortcut ? y_.data() : nullptr);
    });
  }
  std::vector<double> gradient_sums() const {
    const auto result = PartialStatistics::zeros(0, given_.layout.channels);
    cpu::for_each_part({given_.layout}, [&](cpu::Channels part) {
      cpu::gradient_sums(inputs(dy_.data()), given_.layout, part, parameters(), result);
    });
    return numbers_of(result);
  }
  void input_gradient(WriteMode write, std::vector<T>* dx) const {
    write_to(write, dy_, dx, [&](const T* dy, cpu::Channels part, cpu::StoreMode store, T* out) {
      cpu::input_gradient(inputs(dy), given_.layout, part, parameters(), sums_,
                          given_.of_batch ? given_.kCount : 0, store, out);
    });
  }
  void shortcut_gradient(WriteMode write, std::vector<T>* dz) const {
    write_to(write, dy_, dz, [&](const T* dy, cpu::Channels part, cpu::StoreMode store, T* out) {
      cpu::shortcut_gradient(inputs(dy), given_.layout, part, store, out);
    });
  }
  std::vector<double> kept() const { return {}; }

 private:
  /// The output may be in the place of `input`, unless it is added to.
  template <class Kernel>
  void write_to(WriteMode write, const Array<T>& input, std::vector<T>* output,
                const Kernel& kernel) const {
    const bool on_input = on_inputs_ && write == WriteMode::kAssign;
    const Array<T> out(nullptr, on_input ? input.values() : *output, offset_);
    const T* const from = on_input ? out.data() : input.data();
    const cpu::StoreMode store = cpu::prepare_output(write, given_.layout, out.data());
    cpu::for_each_part({given_.layout},
                       [&](cpu::Channels part) { kernel(from, part, store, out.data()); });
    *output = out.values();
  }
  ChannelParameters<Real<T>> parameters() const {
    return {given_.means.data(), given_.inv_stds.data(),
            given_.fix_gamma ? nullptr : given_.gamma.data(), given_.beta.data()};
  }
  BackwardInputs<T> inputs(const T* dy) const {
    return {given_.dz_from(),
            given_.activation,
            {dy, given_.in_place() ? y_.data() : x_.data(), y_.data()}};
  }

  const LayerCase<T>& given_;
  const std::size_t offset_;
  const bool on_inputs_;
  const Array<T> x_, y_, dy_;
  const PartialStatistics sums_;
};

/// The kernels of an instruction set, or of the best where the machine lacks it.
template <class T, cpu::Isa kIsa>
class CpuKernels {
 public:
  using Element = T;
  // Sums are in double.
  static constexpr long double kUnitOfMoments = 0;
  static constexpr long double kUnitOfSums = 1e-14L;
  static constexpr long double kUnitOfEqualSums = kUnitOfSums;
  static constexpr bool kExactMeans = !std::is_same_v<T, double>;
  static constexpr std::int64_t kMostElements = std::numeric_limits<std::int64_t>::max() / 2;

  CpuKernels() {
    cpu::use_isa(kIsa);
    if (!cpu::has_isa(kIsa)) MESSAGE("not on this machine: " << cpu::isa_name(kIsa));
  }
  ~CpuKernels() { cpu::use_isa(before_); }
  CpuKernels(const CpuKernels&) = delete;
  CpuKernels& operator=(const CpuKernels&) = delete;

  /// Vectors do not divide some of them.
  static std::vector<Layout> layouts() {
    return layouts_of({1, 3, 15, 16, 17, 49, 2049, 4100}, {1, 2, 16, 33}, 30000);
  }
  std::vector<double> moments(const Data<T>& x, std::uint32_t number) const {
    const Array<T> array(nullptr, x.elements, number % 8);
    const auto moments = moments_on_cpu<T>(array.data(), x.layout);
    REQUIRE(moments.count == x.layout.count());
    return numbers_of(moments);
  }
  CpuPhases<T> phases(const LayerCase<T>& given, std::uint32_t number) const {
    return {given, number};
  }
  template <class Check>
  static void in_all_orders(std::uint32_t most, const Check& check) {
    const int before = cpu::num_threads();
    for (std::uint32_t number = 0; number < most; ++number) {
      // The least bits of the number are also the offsets of arrays.
      cpu::set_num_threads(std::array{7, 1, 3, 2}[(number + number / 4) % 4]);
      check(number);
    }
    cpu::set_num_threads(before);
  }

 private:
  const cpu::Isa before_ = cpu::isa();
};

template <class T>
using Baseline = CpuKernels<T, cpu::Isa::kBaseline>;
template <class T>
using Avx2 = CpuKernels<T, cpu::Isa::kAvx2>;
template <class T>
using Avx512 = CpuKernels<T, cpu::Isa::kAvx512>;

#ifdef __SANITIZE_THREAD__  // which is slow, and cannot tell these apart
#define GLUON_SYNCBN_CPU_KERNELS Baseline<float>
#else
#define GLUON_SYNCBN_CPU_KERNELS                                                               \
  Baseline<float>, Avx2<float>, Avx512<float>, Baseline<double>, Avx2<double>, Avx512<double>, \
      Baseline<Half>, Avx2<Half>, Avx512<Half>
#endif

}  // namespace gluon_syncbn::tests

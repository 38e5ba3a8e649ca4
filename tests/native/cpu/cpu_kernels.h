#pragma once

#include <doctest/doctest.h>

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

// The phases on all channels of an array, as a backend puts them together.
namespace gluon_syncbn::cpu {

/// What a layer has of each channel.
template <class T>
struct Numbers {
  std::vector<double> mean;
  std::vector<double> inv_std;
  std::vector<Real<T>> beta;
  std::vector<Real<T>> gamma = {};  ///< none: 1

  ChannelParameters<Real<T>> parameters() const {
    return {mean.data(), inv_std.data(), gamma.empty() ? nullptr : gamma.data(), beta.data()};
  }
};

template <class T>
PartialStatistics moments(const T* x, const Layout& layout) {
  const auto result = PartialStatistics::zeros(layout.count(), layout.channels);
  for_each_part({layout}, [&](Channels part) { moments(x, layout, part, result); });
  return result;
}

template <class T>
PartialStatistics gradient_sums(const BackwardInputs<T>& inputs, const Layout& layout,
                                const Numbers<T>& n) {
  const auto result = PartialStatistics::zeros(0, layout.channels);
  for_each_part({layout}, [&](Channels part) {
    gradient_sums(inputs, layout, part, n.parameters(), result);
  });
  return result;
}

template <class T>
void normalize(const T* x, const Layout& layout, const Numbers<T>& n, WriteMode write, T* y,
               const Activation& activation = {}, const T* shortcut = nullptr) {
  const StoreMode store = prepare_output(write, layout, y);
  for_each_part({layout}, [&](Channels part) {
    normalize(x, layout, part, n.parameters(), activation, store, y, shortcut);
  });
}

template <class T>
void input_gradient(const BackwardInputs<T>& inputs, const Layout& layout, const Numbers<T>& n,
                    const PartialStatistics& sums, double count, WriteMode write, T* dx) {
  const StoreMode store = prepare_output(write, layout, dx);
  for_each_part({layout}, [&](Channels part) {
    input_gradient(inputs, layout, part, n.parameters(), sums, count, store, dx);
  });
}

template <class T>
void shortcut_gradient(const BackwardInputs<T>& inputs, const Layout& layout, WriteMode write,
                       T* dz) {
  const StoreMode store = prepare_output(write, layout, dz);
  for_each_part({layout},
                [&](Channels part) { shortcut_gradient(inputs, layout, part, store, dz); });
}

}  // namespace gluon_syncbn::cpu

namespace gluon_syncbn::tests {

/// What the kernels compute for a case; see kernel_tests.h.
template <class T>
class CpuPhases {
 public:
  CpuPhases(const LayerCase<T>& given, std::size_t offset)
      : given_(given),
        offset_(offset),
        x_(nullptr, given.x.elements, offset),
        y_(nullptr, given.y.elements, offset),
        dy_(nullptr, given.dy.elements, offset),
        numbers_{given.means, given.inv_stds(), given.beta,
                 given.fix_gamma ? std::vector<Real<T>>() : given.gamma},
        sums_(statistics_of(0, given.sum_dz, given.sum_dz_centered)) {}

  void normalize(WriteMode write, bool adds_shortcut, std::vector<T>* y) const {
    write_to(y, [&](T* out) {
      cpu::normalize(x_.data(), given_.layout, numbers_, write, out, given_.activation,
                     adds_shortcut ? y_.data() : nullptr);
    });
  }
  std::vector<double> gradient_sums() const {
    return numbers_of(cpu::gradient_sums(inputs(), given_.layout, numbers_));
  }
  void input_gradient(WriteMode write, std::vector<T>* dx) const {
    write_to(dx, [&](T* out) {
      cpu::input_gradient(inputs(), given_.layout, numbers_, sums_,
                          given_.of_batch ? given_.kCount : 0, write, out);
    });
  }
  void shortcut_gradient(WriteMode write, std::vector<T>* dz) const {
    write_to(dz, [&](T* out) { cpu::shortcut_gradient(inputs(), given_.layout, write, out); });
  }
  std::vector<double> kept() const { return {}; }

 private:
  template <class Kernel>
  void write_to(std::vector<T>* output, const Kernel& kernel) const {
    const Array<T> out(nullptr, *output, offset_);
    kernel(out.data());
    *output = out.values();
  }
  BackwardInputs<T> inputs() const {
    return {given_.dz_from(),
            given_.activation,
            {dy_.data(), given_.in_place() ? y_.data() : x_.data(), y_.data()}};
  }

  const LayerCase<T>& given_;
  const std::size_t offset_;
  const Array<T> x_, y_, dy_;
  const cpu::Numbers<T> numbers_;
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
    const auto moments = cpu::moments<T>(array.data(), x.layout);
    REQUIRE(moments.count == x.layout.count());
    return numbers_of(moments);
  }
  CpuPhases<T> phases(const LayerCase<T>& given, std::uint32_t number = 0) const {
    return {given, number % 8};
  }
  template <class Check>
  static void in_all_orders(const Check& check) {
    const int before = cpu::num_threads();
    for (const int threads : {1, 2, 3, 7}) {
      cpu::set_num_threads(threads);
      check();
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

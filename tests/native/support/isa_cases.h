#ifndef GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_ISA_CASES_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_ISA_CASES_H_

#include <doctest/doctest.h>

#include "common/half.h"
#include "cpu/simd/isa.h"

namespace gluon_syncbn::tests {

/// A type of data and the instruction set that kernels use for it.
template <class DataType, cpu::Isa kTheIsa>
struct IsaCase {
  using Type = DataType;
  static constexpr cpu::Isa kIsa = kTheIsa;
};

/// Uses an instruction set for as long as it lives, or the best where the machine lacks it.
class UseIsa {
 public:
  explicit UseIsa(cpu::Isa isa) : before_(cpu::isa()) {
    cpu::use_isa(isa);
    if (!cpu::has_isa(isa)) MESSAGE("not on this machine: " << cpu::isa_name(isa));
  }
  ~UseIsa() { cpu::use_isa(before_); }
  UseIsa(const UseIsa&) = delete;
  UseIsa& operator=(const UseIsa&) = delete;

 private:
  cpu::Isa before_;
};

using FloatBaseline = IsaCase<float, cpu::Isa::kBaseline>;
using FloatAvx2 = IsaCase<float, cpu::Isa::kAvx2>;
using FloatAvx512 = IsaCase<float, cpu::Isa::kAvx512>;
using DoubleBaseline = IsaCase<double, cpu::Isa::kBaseline>;
using DoubleAvx2 = IsaCase<double, cpu::Isa::kAvx2>;
using DoubleAvx512 = IsaCase<double, cpu::Isa::kAvx512>;
using HalfBaseline = IsaCase<Half, cpu::Isa::kBaseline>;
using HalfAvx2 = IsaCase<Half, cpu::Isa::kAvx2>;
using HalfAvx512 = IsaCase<Half, cpu::Isa::kAvx512>;

#ifdef __SANITIZE_THREAD__  // which is slow, and cannot tell these apart
#define GLUON_SYNCBN_DTYPES float
#define GLUON_SYNCBN_CASES FloatAvx512
#else
#define GLUON_SYNCBN_DTYPES float, double, Half
#define GLUON_SYNCBN_CASES                                                                       \
  FloatBaseline, FloatAvx2, FloatAvx512, DoubleBaseline, DoubleAvx2, DoubleAvx512, HalfBaseline, \
      HalfAvx2, HalfAvx512
#endif

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_ISA_CASES_H_

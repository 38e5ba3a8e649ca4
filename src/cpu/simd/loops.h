// The innermost loops. baseline.cc, avx2.cc and avx512.cc include this header, and CMakeLists.txt
// compiles each for its instruction set. They define
//   GLUON_SYNCBN_ISA            the namespace of the kernels
//   GLUON_SYNCBN_VECTOR_BYTES   the width of the vector registers
// Only the function kernels() has external linkage, for the reason that isa.h gives. For the same
// reason, nothing here uses the standard library.

#pragma once

#include "cpu/simd/columns.h"
#include "cpu/simd/elementwise.h"
#include "cpu/simd/isa.h"
#include "cpu/simd/runs.h"

namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA {
namespace {

template <class T>
constexpr Kernels<T> kernels_of() {
  return {&run_moments<T>,        &run_gradient_sums<T>,     &run_normalize<T>,
          &run_input_gradient<T>, &column_moments<T>,        &column_gradient_sums<T>,
          &column_normalize<T>,   &column_input_gradient<T>, &shortcut_gradient<T>};
}

#define GLUON_SYNCBN_KERNELS(T) kernels_of<T>(),
constexpr IsaKernels kKernels{GLUON_SYNCBN_FOR_EACH_DTYPE(GLUON_SYNCBN_KERNELS)};
#undef GLUON_SYNCBN_KERNELS

}  // namespace

const IsaKernels& kernels() { return kKernels; }

}  // namespace gluon_syncbn::cpu::GLUON_SYNCBN_ISA

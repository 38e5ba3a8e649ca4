#ifndef GLUON_SYNCBN_CPU_SIMD_ISA_H_
#define GLUON_SYNCBN_CPU_SIMD_ISA_H_

#include <cstdint>

#include "common/dtype.h"
#include "common/layout.h"
#include "common/real.h"
#include "norm/activation.h"

/// The innermost loops, compiled once for each instruction set from one source (loops.h).
///
/// Files that are compiled for an instruction set which the machine may lack must not share inline
/// functions with others: the linker keeps any one copy of such a function, and that would be an
/// illegal instruction on a lesser machine. So what passes between them are pointers and the plain
/// structures of this header.
namespace gluon_syncbn::cpu {

/// Whether a kernel replaces what its output array holds, adds to it, or replaces it past the
/// caches, which saves reading an array that no cache could keep before it is overwritten.
enum class StoreMode { kAssign, kAdd, kStream };

/// z = (x - center) * scale + shift; an array for each.
template <class R>
struct NormalizationArrays {
  const R* center;
  const R* scale;
  const R* shift;
};

/// dx = dy_factor * dz + x_factor * (x - center) + constant; an array for each.
template <class R>
struct InputGradientArrays {
  const R* dy_factor;
  const R* x_factor;
  const R* constant;
};

/// Consecutive channels.
struct ChannelRange {
  std::int64_t begin;
  std::int64_t end;
};

/// A row-major matrix without gaps. One with fewer columns than a vector has lanes has one row.
struct Extent {
  std::int64_t rows;
  std::int64_t columns;
};

/// For arrays in which a channel's elements lie in long runs, all elements of some channels; for
/// others, matrices in which the columns have statistics of their own. A run has 16 elements or
/// more, no fewer than a vector has lanes. Outputs may be inputs.
///
/// y is act(z), or act(z + shortcut) if there is a shortcut. Its gradient with respect to what the
/// activation is given, dz, is told by y or, if that is null, by z. Without an activation, dz is dy
/// and z is not looked at. If x is null, y tells it too: z is the inverse of the activation, and
/// x - center is (z - shift) * scale, where scale is the inverse of that above.
template <class T>
struct Kernels {
  using R = Real<T>;

  void (*run_moments)(const T* x, const Layout&, ChannelRange, double* mean, double* m2);
  void (*run_gradient_sums)(const T* dy, const T* x, const T* y, const Layout&, ChannelRange,
                            const NormalizationArrays<double>&, const Activation&, double* sum_dz,
                            double* sum_dz_centered);
  void (*run_normalize)(const T* x, const T* shortcut, const Layout&, ChannelRange,
                        const NormalizationArrays<R>&, const Activation&, StoreMode, T* y);
  void (*run_input_gradient)(const T* dy, const T* x, const T* y, const Layout&, ChannelRange,
                             const NormalizationArrays<R>&, const InputGradientArrays<R>&,
                             const Activation&, StoreMode, T* dx);

  void (*column_moments)(const T* x, Extent, double* mean, double* m2);
  void (*column_gradient_sums)(const T* dy, const T* x, const T* y, Extent,
                               const NormalizationArrays<double>&, const Activation&,
                               double* sum_dz, double* sum_dz_centered);
  void (*column_normalize)(const T* x, const T* shortcut, Extent, const NormalizationArrays<R>&,
                           const Activation&, StoreMode, T* y);
  void (*column_input_gradient)(const T* dy, const T* x, const T* y, Extent,
                                const NormalizationArrays<R>&, const InputGradientArrays<R>&,
                                const Activation&, StoreMode, T* dx);

  /// dz by y, for elements that lie side by side.
  void (*shortcut_gradient)(const T* dy, const T* y, std::int64_t number, const Activation&,
                            StoreMode, T* dz);
};

/// The kernels of one instruction set for all types of data.
struct IsaKernels {
#define GLUON_SYNCBN_KERNELS(T) Kernels<T> of_##T;
  GLUON_SYNCBN_FOR_EACH_DTYPE(GLUON_SYNCBN_KERNELS)
#undef GLUON_SYNCBN_KERNELS
};

namespace baseline {
const IsaKernels& kernels();
}
namespace avx2 {
const IsaKernels& kernels();
}
namespace avx512 {
const IsaKernels& kernels();
}

enum class Isa { kBaseline, kAvx2, kAvx512 };

const char* isa_name(Isa isa);

/// Whether this machine has the instructions and this library was built with them.
bool has_isa(Isa isa);

/// The instruction set in use: the best that the machine has, unless the environment variable
/// GLUON_SYNCBN_ISA (baseline, avx2 or avx512) names a lesser one.
Isa isa();

/// For tests. Without effect where the machine lacks `isa`.
void use_isa(Isa isa);

/// Those of the instruction set in use.
template <class T>
const Kernels<T>& kernels_in_use();

}  // namespace gluon_syncbn::cpu

#endif  // GLUON_SYNCBN_CPU_SIMD_ISA_H_

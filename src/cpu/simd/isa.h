#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/layout.h"
#include "norm/activation.h"
#include "norm/coefficients.h"
#include "norm/variants.h"

/// The innermost loops, compiled once for each instruction set from one source (loops.h).
///
/// A file that is compiled for an instruction set must not share inline functions with other files.
/// The linker keeps any one copy of such a function, which a machine without these instructions
/// could not run. So such a file calls a function of another header only if it is always inlined,
/// or if an argument of its template lies in an unnamed namespace of the file.
namespace gluon_syncbn::cpu {

/// How a kernel writes its output array.
enum class StoreMode {
  kAssign,  ///< replaces the elements
  kAdd,     ///< adds to the elements
  kStream,  ///< replaces the elements and bypasses the caches, which saves reading them first
};

/// Consecutive channels: [begin, end).
struct Channels {
  std::int64_t begin;
  std::int64_t end;

  std::int64_t number() const { return end - begin; }
};

/// The size of a row-major matrix without gaps.
struct Extent {
  std::int64_t rows;
  std::int64_t columns;
};

/// The kernels for data of T.
///
/// run_... take arrays in which a channel's elements lie in long runs (Layout::has_runs), and
/// compute a number of channels, with the first of which all arrays begin. column_... take matrices
/// in which each column has its own statistics. An output array may be an input array too.
///
/// Each channel, or each column, has its own coefficients. The first sum is that of dz, the second
/// that of dz * (x - center). In place, the second is that of dz * (z - center) * scale.
template <class T>
struct Kernels {
  using R = Real<T>;

  void (*run_moments)(const T* x, const Layout&, std::int64_t channels, double* mean, double* m2);
  void (*run_gradient_sums)(const BackwardInputs<T>&, const Layout&, std::int64_t channels,
                            const Affine<const double*>&, double* first, double* second);
  void (*run_normalize)(const T* x, const T* shortcut, const Layout&, std::int64_t channels,
                        const Affine<const R*>&, const Activation&, StoreMode, T* y);
  void (*run_input_gradient)(const BackwardInputs<T>&, const Layout&, std::int64_t channels,
                             const GradientAndShift<const R*>&, StoreMode, T* dx);

  void (*column_moments)(const T* x, Extent, double* mean, double* m2);
  void (*column_gradient_sums)(const BackwardInputs<T>&, Extent, const Affine<const double*>&,
                               double* first, double* second);
  void (*column_normalize)(const T* x, const T* shortcut, Extent, const Affine<const R*>&,
                           const Activation&, StoreMode, T* y);
  void (*column_input_gradient)(const BackwardInputs<T>&, Extent, const GradientAndShift<const R*>&,
                                StoreMode, T* dx);

  /// Computes dz from y for `number` elements, whatever their channels.
  void (*shortcut_gradient)(const BackwardInputs<T>&, std::int64_t number, StoreMode, T* dz);
};

/// The kernels of one instruction set, for all types of data.
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

/// Whether this machine has the instructions and the library was built with them.
bool has_isa(Isa isa);

/// The instruction set in use: the newest that the machine has, unless the environment variable
/// GLUON_SYNCBN_ISA (baseline, avx2 or avx512) names an older one. Throws Error if its value is
/// another name.
Isa isa();

/// For tests. Has no effect if the machine lacks `isa`.
void use_isa(Isa isa);

/// The kernels of the instruction set in use.
template <class T>
const Kernels<T>& kernels_in_use();

}  // namespace gluon_syncbn::cpu

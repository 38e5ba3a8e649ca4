#ifndef GLUON_SYNCBN_CUDA_KERNELS_PHASES_H_
#define GLUON_SYNCBN_CUDA_KERNELS_PHASES_H_

#include <cstddef>
#include <cstdint>

#include "common/layout.h"
#include "common/real.h"
#include "common/write_mode.h"
#include "cuda/kernels/channels.h"
#include "cuda/runtime.h"
#include "norm/activation.h"

namespace gluon_syncbn::cuda {

/// What kernels need beside their arrays.
class Workspace {
 public:
  virtual ~Workspace() = default;
  /// Room for a number of doubles, which is used until the work put on the stream is done.
  virtual double* doubles(std::size_t number) = 0;
  /// Zeros, which every kernel leaves as zeros for the next one of the stream.
  virtual std::uint32_t* counters(std::size_t number) = 0;
};

/// Loads all kernels to a GPU.
void load_kernels(int ordinal);

/// What follows the normalization z in the same kernel: y = act(z), or act(z + shortcut).
template <class T>
struct Activated {
  Activation activation = {};
  const T* shortcut = nullptr;  // null: none
};

/// What makes dz of dy, the gradient with respect to what the activation was given: the output or,
/// where that is not at hand, the normalizations that forward has left. In place the output tells x
/// too, by the last three.
template <class T>
struct Gate {
  Activation activation = {};
  const T* y = nullptr;
  const StoredAffine<Real<T>>* normalizations = nullptr;
  bool inplace = false;
  const double* inv_std = nullptr;
  const Real<T>* gamma = nullptr;  // null: 1
  const Real<T>* beta = nullptr;
};

/// The four phases of batch normalization on one GPU, for T in float, double and Half: each puts
/// one kernel on the stream, which reads its arrays once. Arrays lie in memory of the GPU. As on
/// the CPU (cpu/kernels.h), the order of sums depends on the layout alone, except that an
/// array that does not begin at a multiple of 16 bytes has an order of its own.
///

/// Mean and M2 of every channel into `message`.
template <class T>
void moments(const T* x, const Layout& layout, Workspace* workspace, const Pairs& message,
             Stream* stream);

/// Merges what `source` names and then computes `y` if it is not null, by two kernels.
template <class T>
void normalize(const T* x, const Layout& layout, const ForwardSource<Real<T>>& source,
               WriteMode write, T* y, Stream* stream, const Activated<T>& activated = {});

/// Sums of dz and of dz * (x - mean) of every channel into `message`. In place `x` is not read.
template <class T>
void gradient_sums(const T* dy, const T* x, const Layout& layout, const double* mean,
                   Workspace* workspace, const Pairs& message, Stream* stream,
                   const Gate<T>& gate = {});

/// Merges what `source` names and then computes `dx` and `dshortcut` if they are not null, by two
/// kernels. In place `x` is not read, and there is no `dshortcut`.
template <class T>
void input_gradient(const T* dy, const T* x, const Layout& layout,
                    const BackwardSource<Real<T>>& source, WriteMode write, T* dx,
                    Workspace* workspace, Stream* stream, const Gate<T>& gate = {},
                    WriteMode write_shortcut = WriteMode::kAssign, T* dshortcut = nullptr);

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_KERNELS_PHASES_H_

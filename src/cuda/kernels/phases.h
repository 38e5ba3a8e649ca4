#pragma once

#include <cstddef>
#include <cstdint>

#include "common/dtype.h"
#include "common/layout.h"
#include "cuda/kernel.h"
#include "cuda/kernels/merge_devices.h"
#include "norm/activation.h"
#include "norm/per_channel.h"

namespace gluon_syncbn::cuda {

/// The activation and the shortcut after the normalization z: y = act(z), or act(z + shortcut).
template <class T>
struct Activated {
  Activation activation = {};
  const T* shortcut = nullptr;  // null: none
};

/// Determines dz, the gradient with respect to the input of the activation, from dy: by the output
/// y or, if that is null, by the normalizations that forward has left. In place, x is recovered
/// from the output with the last three members.
template <class T>
struct DzInputs {
  Activation activation = {};
  const T* y = nullptr;
  const StoredAffine<Real<T>>* normalizations = nullptr;
  bool inplace = false;
  const double* inv_std = nullptr;
  const Real<T>* gamma = nullptr;  // null: 1
  const Real<T>* beta = nullptr;
};

// The four phases of batch normalization on one GPU, for T in float, double and Half. Arrays lie in
// memory of the GPU, and a kernel reads them once. As on the CPU (cpu/kernels.h), the order of sums
// depends on the layout. It also depends on the place of an array within 16 bytes. Kernels get
// copies of arrays that do not lie alike within 16 bytes. In a rehearsal (Launcher), arguments say
// only which arrays there are, and how they lie.

/// Computes mean and M2 of every channel into `message`.
template <class T>
void moments(const T* x, const Layout& layout, const Message& message, const Launcher& launcher);

/// Merges the messages of `merge`, and then computes `y` if it is not null.
template <class T>
void normalize(const T* x, const Layout& layout, const ForwardMerge<Real<T>>& merge,
               WriteMode write, T* y, const Launcher& launcher, const Activated<T>& activated = {});

/// Computes the sums of dz and of dz * (x - mean) of every channel into `message`. In place it
/// does not read `x`.
template <class T>
void gradient_sums(const T* dy, const T* x, const Layout& layout, const double* mean,
                   const Message& message, const Launcher& launcher,
                   const DzInputs<T>& dz_inputs = {});

/// Merges the messages of `merge`, and then computes `dx` and `dshortcut` if they are not null.
/// In place it does not read `x`, and there is no `dshortcut`.
template <class T>
void input_gradient(const T* dy, const T* x, const Layout& layout,
                    const BackwardMerge<Real<T>>& merge, WriteMode write, T* dx,
                    const Launcher& launcher, const DzInputs<T>& dz_inputs = {},
                    WriteMode write_shortcut = WriteMode::kAssign, T* dshortcut = nullptr);

}  // namespace gluon_syncbn::cuda

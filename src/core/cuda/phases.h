#ifndef GLUON_SYNCBN_CORE_CUDA_PHASES_H_
#define GLUON_SYNCBN_CORE_CUDA_PHASES_H_

#include <cstddef>
#include <functional>

#include "core/cuda/numbers.h"
#include "core/cuda/runtime.h"
#include "core/kernels_cpu.h"
#include "core/layout.h"

namespace gluon_syncbn::cuda {

/// The four phases of batch normalization on one GPU, for T in float, double and Half: each puts
/// one kernel on the stream that reads its arrays once, and the first and third a second, small
/// kernel where the array is larger than a block takes. Arrays lie in memory of the GPU. As on the
/// CPU (core/kernels_cpu.h), the order of sums depends on the layout alone, except that an array
/// that does not begin at a multiple of 16 bytes has an order of its own.
///
/// A message holds two numbers for every channel, the second ones behind all the first ones.

/// Gives room for a number of doubles, which is used until the work put on the stream is done.
using Scratch = std::function<double*(std::size_t)>;

/// Mean and M2 of every channel into `message`.
template <class T>
void moments(const T* x, const Layout& layout, const Scratch& scratch, double* message,
             Stream* stream);

template <class T>
void normalize(const T* x, const Layout& layout, const AffineSource<Real<T>>& source, Write write,
               T* y, Stream* stream);

/// Sums of dy and of dy * (x - mean) of every channel into `message`.
template <class T>
void gradient_sums(const T* dy, const T* x, const Layout& layout, const double* mean,
                   const Scratch& scratch, double* message, Stream* stream);

template <class T>
void input_gradient(const T* dy, const T* x, const Layout& layout,
                    const GradientSource<Real<T>>& source, Write write, T* dx, Stream* stream);

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CORE_CUDA_PHASES_H_

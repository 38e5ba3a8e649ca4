#ifndef GLUON_SYNCBN_CUDA_KERNELS_PHASES_H_
#define GLUON_SYNCBN_CUDA_KERNELS_PHASES_H_

#include <cstddef>
#include <cstdint>

#include "common/layout.h"
#include "common/real.h"
#include "common/write_mode.h"
#include "cuda/kernels/between_blocks.h"
#include "cuda/kernels/channels.h"
#include "cuda/runtime.h"

namespace gluon_syncbn::cuda {

/// What kernels need beside their arrays.
class Workspace {
 public:
  virtual ~Workspace() = default;
  /// Room for a number of doubles, which is used until the work put on the stream is done.
  virtual double* doubles(std::size_t number) = 0;
  /// Zeros, which every kernel leaves as zeros for the next one of the stream.
  virtual std::uint32_t* counters(std::size_t number) = 0;
  /// For one kernel.
  virtual Claims claims(std::size_t number) = 0;
};

/// The four phases of batch normalization on one GPU, for T in float, double and Half: each puts
/// one kernel on the stream, which reads its arrays once. Arrays lie in memory of the GPU. As on
/// the CPU (cpu/kernels.h), the order of sums depends on the layout alone, except that an
/// array that does not begin at a multiple of 16 bytes has an order of its own.
///
/// A message holds two numbers for every channel, the second ones behind all the first ones.

/// Mean and M2 of every channel into `message`.
template <class T>
void moments(const T* x, const Layout& layout, Workspace* workspace, double* message,
             Stream* stream);

/// What `source` computes for every channel, and `y` where it is not null.
template <class T>
void normalize(const T* x, const Layout& layout, const ForwardSource<Real<T>>& source,
               WriteMode write, T* y, Workspace* workspace, Stream* stream);

/// Sums of dy and of dy * (x - mean) of every channel into `message`.
template <class T>
void gradient_sums(const T* dy, const T* x, const Layout& layout, const double* mean,
                   Workspace* workspace, double* message, Stream* stream);

/// What `source` computes for every channel, and `dx` where it is not null.
template <class T>
void input_gradient(const T* dy, const T* x, const Layout& layout,
                    const BackwardSource<Real<T>>& source, WriteMode write, T* dx,
                    Workspace* workspace, Stream* stream);

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_KERNELS_PHASES_H_

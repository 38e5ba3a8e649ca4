#ifndef GLUON_SYNCBN_CUDA_KERNELS_INSTANCES_H_
#define GLUON_SYNCBN_CUDA_KERNELS_INSTANCES_H_

#include "cuda/kernels/channels.h"
#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/reduce.h"

// All kernels there are. Every use of one of these macros defines VISIT(...) before.

/// Those for data of T: with the widest accesses, and one by one for arrays that lie badly.
#define GLUON_SYNCBN_CUDA_DATA_BODIES(VISIT, T)         \
  GLUON_SYNCBN_CUDA_VECTOR_BODIES(VISIT, T, kWidest<T>) \
  GLUON_SYNCBN_CUDA_VECTOR_BODIES(VISIT, T, 1)

#define GLUON_SYNCBN_CUDA_VECTOR_BODIES(VISIT, T, V)            \
  GLUON_SYNCBN_CUDA_PARTITION_BODIES(VISIT, ChannelFirst, T, V) \
  GLUON_SYNCBN_CUDA_PARTITION_BODIES(VISIT, ChannelLast, T, V)

#define GLUON_SYNCBN_CUDA_PARTITION_BODIES(VISIT, Tiling, T, V) \
  VISIT(Reduce<Tiling, T, V, Deviations>)                       \
  VISIT(Reduce<Tiling, T, V, Products>)                         \
  VISIT(Elementwise<Tiling, T, V, ForwardSource<Real<T>>>)      \
  VISIT(Elementwise<Tiling, T, V, BackwardSource<Real<T>>>)

/// Those that have a thread for every channel.
#define GLUON_SYNCBN_CUDA_CHANNEL_BODIES(VISIT) \
  VISIT(Channels<ForwardSource<float>>)         \
  VISIT(Channels<ForwardSource<double>>)        \
  VISIT(Channels<BackwardSource<float>>)        \
  VISIT(Channels<BackwardSource<double>>)       \
  VISIT(Channels<MoveAverages<float>>)          \
  VISIT(Channels<MoveAverages<double>>)

#endif  // GLUON_SYNCBN_CUDA_KERNELS_INSTANCES_H_

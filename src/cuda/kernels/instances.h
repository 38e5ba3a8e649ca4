#pragma once

#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/merge_blocks.h"
#include "cuda/kernels/merge_devices.h"
#include "cuda/kernels/per_channel.h"
#include "cuda/kernels/reduce.h"
#include "cuda/kernels/sources.h"

// The list of all kernels. The user of a macro defines VISIT(...).

/// Kernels for data of T.
#define GLUON_SYNCBN_CUDA_DATA_BODIES(VISIT, T) \
  GLUON_SYNCBN_CUDA_IN_ALL_TILINGS(GLUON_SYNCBN_CUDA_DATA_BODIES_IN, VISIT, T)

/// With the widest accesses, and one by one for arrays that are not aligned alike.
#define GLUON_SYNCBN_CUDA_IN_ALL_TILINGS(BODIES, VISIT, T) \
  BODIES(VISIT, ChannelFirst, T, kWidest<T>)               \
  BODIES(VISIT, ChannelLast, T, kWidest<T>)                \
  BODIES(VISIT, ChannelFirst, T, 1)                        \
  BODIES(VISIT, ChannelLast, T, 1)

#define GLUON_SYNCBN_CUDA_DATA_BODIES_IN(VISIT, Tiling, T, V)              \
  VISIT(Reduce<Tiling, T, V, Deviations>)                                  \
  VISIT(Reduce<Tiling, T, V, Products>)                                    \
  VISIT(Elementwise<Tiling, T, V, Normalization<Real<T>>>)                 \
  VISIT(Elementwise<Tiling, T, V, InputGradient<Real<T>>>)                 \
  VISIT(Reduce<Tiling, T, V, ProductsByInput>)                             \
  VISIT(Reduce<Tiling, T, V, ProductsByOutput>)                            \
  VISIT(Reduce<Tiling, T, V, ProductsInPlace>)                             \
  VISIT(Elementwise<Tiling, T, V, ActivatedNormalization<Real<T>, false>>) \
  VISIT(Elementwise<Tiling, T, V, ActivatedNormalization<Real<T>, true>>)  \
  VISIT(Elementwise<Tiling, T, V, InputGradientByInput<Real<T>>>)          \
  VISIT(Elementwise<Tiling, T, V, InputGradientByOutput<Real<T>>>)         \
  VISIT(Elementwise<Tiling, T, V, InputGradientInPlace<Real<T>>>)

/// Kernels of channels.
#define GLUON_SYNCBN_CUDA_CHANNEL_BODIES(VISIT)      \
  GLUON_SYNCBN_CUDA_CHANNEL_BODIES_OF(VISIT, float)  \
  GLUON_SYNCBN_CUDA_CHANNEL_BODIES_OF(VISIT, double) \
  VISIT(PerChannel<ReadNumbers>)

/// For parameters, or for elements that are computed as R.
#define GLUON_SYNCBN_CUDA_CHANNEL_BODIES_OF(VISIT, R) \
  VISIT(PerChannel<ForwardMerge<R>>)                  \
  VISIT(PerChannel<BackwardMerge<R>>)                 \
  VISIT(PerChannel<CountBatch<R>>)                    \
  VISIT(MergeBlocks<Deviations<R>>)                   \
  VISIT(MergeBlocks<Products<R>>)                     \
  VISIT(MergeBlocks<ProductsInPlace<R>>)

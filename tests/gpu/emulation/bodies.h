#pragma once

#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/merge_blocks.h"
#include "cuda/kernels/merge_devices.h"
#include "cuda/kernels/reduce.h"
#include "cuda/kernels/sources.h"
#include "cuda/kernels/thread_per_channel.h"
#include "norm/variants.h"

// All kernels there are, for the tests: the fake CUDA knows no other ones, and compile_kernels
// compiles each of them. The user of a macro defines VISIT(...).

/// Kernels for data of T.
#define GLUON_SYNCBN_DATA_BODIES(VISIT, T)            \
  GLUON_SYNCBN_DATA_BODIES_IN(VISIT, ChannelFirst, T) \
  GLUON_SYNCBN_DATA_BODIES_IN(VISIT, ChannelLast, T)

#define GLUON_SYNCBN_DATA_BODIES_IN(VISIT, Tiling, T)                         \
  VISIT(Reduce<Tiling, T, Deviations<Real<T>>>)                               \
  VISIT(Elementwise<Tiling, T, Normalization<Real<T>, YFrom::kX>>)            \
  VISIT(Elementwise<Tiling, T, Normalization<Real<T>, YFrom::kActivated>>)    \
  VISIT(Elementwise<Tiling, T, Normalization<Real<T>, YFrom::kActivatedSum>>) \
  GLUON_SYNCBN_BACKWARD_BODIES(VISIT, Tiling, T, DzFrom::kDy)                 \
  GLUON_SYNCBN_BACKWARD_BODIES(VISIT, Tiling, T, DzFrom::kZ)                  \
  GLUON_SYNCBN_BACKWARD_BODIES(VISIT, Tiling, T, DzFrom::kOutput)             \
  GLUON_SYNCBN_BACKWARD_BODIES(VISIT, Tiling, T, DzFrom::kInPlace)

#define GLUON_SYNCBN_BACKWARD_BODIES(VISIT, Tiling, T, kFrom) \
  VISIT(Reduce<Tiling, T, Products<Real<T>, kFrom>>)          \
  VISIT(Elementwise<Tiling, T, InputGradient<Real<T>, kFrom>>)

/// Kernels of channels.
#define GLUON_SYNCBN_CHANNEL_BODIES(VISIT)     \
  GLUON_SYNCBN_CHANNEL_BODIES_OF(VISIT, float) \
  GLUON_SYNCBN_CHANNEL_BODIES_OF(VISIT, double)

/// For parameters, or for elements that are computed as R.
#define GLUON_SYNCBN_CHANNEL_BODIES_OF(VISIT, R) \
  VISIT(PerChannel<ForwardMerge<R>>)             \
  VISIT(PerChannel<BackwardMerge<R>>)            \
  VISIT(PerChannel<CountBatch<R>>)               \
  VISIT(MergeBlocks<Deviations<R>>)              \
  VISIT(MergeBlocks<Products<R, DzFrom::kDy>>)   \
  VISIT(MergeBlocks<Products<R, DzFrom::kInPlace>>)

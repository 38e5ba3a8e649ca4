#ifndef GLUON_SYNCBN_CORE_CUDA_INSTANCES_H_
#define GLUON_SYNCBN_CORE_CUDA_INSTANCES_H_

#include "core/cuda/channel_bodies.h"
#include "core/cuda/column_bodies.h"
#include "core/cuda/run_bodies.h"

// All kernels there are. Every use of one of these macros defines VISIT(...) before.

/// Those for data of T: with the widest accesses, and one by one for arrays that lie badly.
#define GLUON_SYNCBN_CUDA_DATA_BODIES(VISIT, T)         \
  GLUON_SYNCBN_CUDA_VECTOR_BODIES(VISIT, T, kWidest<T>) \
  GLUON_SYNCBN_CUDA_VECTOR_BODIES(VISIT, T, 1)

#define GLUON_SYNCBN_CUDA_VECTOR_BODIES(VISIT, T, V) \
  VISIT(RunMoments<T, V>)                            \
  VISIT(RunNormalize<T, V>)                          \
  VISIT(RunGradientSums<T, V>)                       \
  VISIT(RunInputGradient<T, V>)                      \
  VISIT(ColumnMoments<T, V>)                         \
  VISIT(ColumnNormalize<T, V>)                       \
  VISIT(ColumnGradientSums<T, V>)                    \
  VISIT(ColumnInputGradient<T, V>)

/// Those that have a thread or some threads for every channel.
#define GLUON_SYNCBN_CUDA_CHANNEL_BODIES(VISIT) \
  VISIT(MergeMoments<Runs>)                     \
  VISIT(MergeMoments<Columns>)                  \
  VISIT(MergeSums<Runs>)                        \
  VISIT(MergeSums<Columns>)                     \
  VISIT(BatchStatistics)                        \
  VISIT(SumMessages)                            \
  VISIT(RunningStatistics<float>)               \
  VISIT(RunningStatistics<double>)              \
  VISIT(MoveAverages<float>)                    \
  VISIT(MoveAverages<double>)                   \
  VISIT(CountBatch<float>)                      \
  VISIT(CountBatch<double>)                     \
  VISIT(ParameterGradients<float>)              \
  VISIT(ParameterGradients<double>)

#endif  // GLUON_SYNCBN_CORE_CUDA_INSTANCES_H_

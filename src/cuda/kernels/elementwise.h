#ifndef GLUON_SYNCBN_CUDA_KERNELS_ELEMENTWISE_H_
#define GLUON_SYNCBN_CUDA_KERNELS_ELEMENTWISE_H_

#include <cstdint>

#include "cuda/kernels/between_blocks.h"
#include "cuda/kernels/body.h"
#include "cuda/kernels/numbers.h"
#include "cuda/kernels/tiling.h"
#include "cuda/kernels/visit.h"

namespace gluon_syncbn::cuda {

/// An output array of which every element depends on those at the same place of the inputs, and on
/// what `Source` (channels.h) has for its channel, which one of the blocks computes for all.
template <class Tiling, class T, int kVectorIn, class Source>
struct Elementwise {
  static constexpr const char* kName = Source::kName;
  using R = Real<T>;
  using Values = typename Source::Values;
  static constexpr int kInputs = Values::kInputs;

  Tiling partition;
  const T* inputs[kInputs];
  Source source;
  Claims claims;  // of channels
  bool add;
  T* out;

  struct Shared {
    Values values[kThreads];  // of the channels of the block
  };
  struct Thread {
    typename Tiling::Task task;
    bool has_turn;
  };
  static constexpr int kSteps = 4;

  GLUON_SYNCBN_HOST_DEVICE bool step(int step, std::int64_t block, int thread, Thread* self,
                                     Shared* shared) const {
    const ChannelRange channels = partition.channels_of(block);
    if (step < 3) {
      if (step == 0) self->task = partition.task(block, thread);
      if (thread < channels.size) {
        prepare(step, channels.at(thread, partition.channels), &self->has_turn,
                &shared->values[thread]);
      }
      return true;
    }
    if (!self->task.exists) return true;
    Visitor visitor{inputs, {}, add, out};
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kNumber; ++i) {
      const std::int64_t channel = partition.channel(self->task, i);
      visitor.values[i] = shared->values[channels.index(channel, partition.channels)];
    }
    visit(partition, self->task, &visitor);
    return true;
  }

 private:
  GLUON_SYNCBN_HOST_DEVICE void prepare(int step, std::int64_t channel, bool* has_turn,
                                        Values* values) const {
    if (step == 0) {
      *has_turn = claims.claim(channel);
    } else if (step == 1 && *has_turn) {
      source.compute(channel);
      claims.publish(channel);
    } else if (step == 2) {
      claims.wait(channel);
      *values = source.at(channel);
    }
  }

  /// Of channels that a thread has to do with at a time.
  static constexpr int kNumber = Tiling::template kChannels<kVectorIn>;

  struct Visitor {
    static constexpr int kVector = kVectorIn;
    static constexpr int kTogether = 4 / kInputs;

    const T* const* inputs;
    Values values[kNumber];
    bool add;
    T* out;

    template <int N>
    GLUON_SYNCBN_HOST_DEVICE void full(const std::int64_t* at) {
      AlignedVector<T, kVector> packs[N][kInputs];
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) {
        GLUON_SYNCBN_UNROLL
        for (int k = 0; k < kInputs; ++k) packs[i][k] = load<kVector>(inputs[k] + at[i]);
      }
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < N; ++i) {
        R results[kVector];
        GLUON_SYNCBN_UNROLL
        for (int j = 0; j < kVector; ++j) {
          R elements[kInputs];
          GLUON_SYNCBN_UNROLL
          for (int k = 0; k < kInputs; ++k) elements[k] = to_real(packs[i][k].at[j]);
          results[j] = values[j % kNumber].of(elements);
        }
        store<kVector>(out + at[i], results, add);
      }
    }
    GLUON_SYNCBN_HOST_DEVICE void one(std::int64_t at, int column) {
      R elements[kInputs];
      GLUON_SYNCBN_UNROLL
      for (int k = 0; k < kInputs; ++k) elements[k] = to_real(inputs[k][at]);
      const R result = values[column].of(elements);
      store<1>(out + at, &result, add);
    }
  };
};

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_KERNELS_ELEMENTWISE_H_

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
///
/// Blocks go through the arrays from their end: what the kernel of the sums has read last is what
/// the GPU's cache still holds.
template <class Tiling, class T, int kVectorIn, class Source>
struct Elementwise {
  static constexpr const char* kName = Source::kName;
  using R = Real<T>;
  using Values = typename Source::Values;
  static constexpr int kInputs = Values::kInputs;
  static constexpr int kTogether = 4 / kInputs;
  static constexpr int kAhead = 2;

  Tiling tiling;
  std::uint32_t last_block;
  const T* inputs[kInputs];
  Source source;
  Claims claims;  // of channels
  bool add;
  T* out;

  struct Shared {
    Values values[kMostBlockChannels];  // of the channels of the block
  };
  /// The first accesses of a thread, whose loads are under way while it waits for the channels.
  struct Thread {
    typename Tiling::Task task;
    ChannelRange channels;  // of the block
    Walk<Tiling, kVectorIn> walk;
    Piece pieces[kAhead];
    AlignedVector<T, kVectorIn> packs[kAhead][kInputs];
    bool has_turn;
  };
  static constexpr int kSteps = 4;
  static constexpr int kResident = kResidentBlocks<R>;

  GLUON_SYNCBN_HOST_DEVICE bool step(int step, std::uint32_t block, std::uint32_t thread,
                                     Thread* self, Shared* shared) const {
    if (step == 0) begin(last_block - block, thread, self);
    const ChannelRange& channels = self->channels;
    if (step < 3) {
      if (thread < channels.size) {
        prepare(step, channels.at(thread, tiling.channels), &self->has_turn,
                &shared->values[thread]);
      }
      return true;
    }
    if (!self->task.exists) return true;
    Visitor visitor{inputs, {}, add, out};
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kNumber; ++i) {
      const std::uint32_t channel = tiling.channel(self->task, static_cast<std::uint32_t>(i));
      visitor.values[i] = shared->values[channels.index(channel, tiling.channels)];
    }
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      const Piece& piece = self->pieces[i];
      if (piece.end - piece.begin == kVectorIn) {
        visitor.put(piece.begin, self->packs[i]);
      } else {
        for (std::int64_t at = piece.begin; at < piece.end; ++at) visitor.one(at, 0);
      }
    }
    visit(tiling, &self->walk, &visitor);
    visit_rest(tiling, self->task, &visitor);
    return true;
  }

 private:
  GLUON_SYNCBN_HOST_DEVICE void begin(std::uint32_t block, std::uint32_t thread,
                                      Thread* self) const {
    self->task = tiling.template task<kVectorIn>(block, thread);
    self->channels = tiling.template channels_of<kVectorIn>(block);
    auto walk = Walk<Tiling, kVectorIn>::of(tiling, self->task);
    const bool are_full = Walk<Tiling, kVectorIn>::are_full(tiling);
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      Piece& piece = self->pieces[i];
      piece = {0, 0};
      if (!walk.has(tiling, 1)) continue;
      if (are_full) {
        piece.begin = walk.next_full(tiling);
        piece.end = piece.begin + kVectorIn;
      } else {
        piece = walk.next(tiling);
        if (piece.end - piece.begin != kVectorIn) continue;
      }
      GLUON_SYNCBN_UNROLL
      for (int k = 0; k < kInputs; ++k) {
        self->packs[i][k] = load<kVectorIn>(inputs[k] + piece.begin);
      }
    }
    self->walk = walk;
  }

  /// Each thread for one channel.
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
    static constexpr int kTogether = Elementwise::kTogether;

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
      for (int i = 0; i < N; ++i) put(at[i], packs[i]);
    }
    /// The outputs of one access.
    GLUON_SYNCBN_HOST_DEVICE void put(std::int64_t at, const AlignedVector<T, kVector>* packs) {
      R results[kVector];
      GLUON_SYNCBN_UNROLL
      for (int j = 0; j < kVector; ++j) {
        R elements[kInputs];
        GLUON_SYNCBN_UNROLL
        for (int k = 0; k < kInputs; ++k) elements[k] = to_real(packs[k].at[j]);
        results[j] = values[j % kNumber].of(elements);
      }
      store<kVector>(out + at, results, add);
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

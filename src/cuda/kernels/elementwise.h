#pragma once

#include <cstdint>

#include "cuda/kernels/body.h"
#include "cuda/kernels/numbers.h"
#include "cuda/kernels/tiling.h"
#include "cuda/kernels/visit.h"

namespace gluon_syncbn::cuda {

template <class T>
struct Output {
  T* to;           // null: not wanted, but another output is
  const T* added;  // `to` if the kernel adds to the old values, otherwise null
};

/// Computes output arrays. An element depends on the input elements at the same index, and on the
/// values that `Source` (sources.h) has for its channel.
///
/// The first blocks take the end of the arrays, because the sums have read the end last. The GPU's
/// cache still holds it.
template <class Tiling, class T, int kVectorIn, class Source>
struct Elementwise {
  static constexpr const char* kName = Source::kName;
  using R = Real<T>;
  using Values = typename Source::Values;
  static constexpr int kInputs = Source::kInputs;
  static constexpr int kOutputs = Source::kOutputs;
  static constexpr int kTogether = kAccessesTogether<kInputs>;
  static constexpr int kAhead = 2;

  Tiling tiling;
  std::uint32_t last_block;
  const T* inputs[kInputs];
  Source source;
  Output<T> outputs[kOutputs];

  struct Shared {};
  static constexpr int kBlockThreads = kThreads;
  static constexpr int kSteps = 1;
  static constexpr int kResident = kResidentBlocks<R, Source::kIsActivated>;

  GLUON_SYNCBN_HOST_DEVICE void step(int, std::uint32_t block, std::uint32_t thread,
                                     Shared*) const {
    const auto task = tiling.template task<kVectorIn>(last_block - block, thread);
    if (!task.exists) return;
    Ahead ahead;
    load_ahead(task, &ahead);
    if (adds()) {
      write_all<true>(task, &ahead);
    } else {
      write_all<false>(task, &ahead);
    }
  }

 private:
  /// The first accesses of a thread. Their loads come before the loads of the channels' values, so
  /// that both loads overlap.
  struct Ahead {
    Walk<Tiling, kVectorIn> walk;
    Piece pieces[kAhead];
    AlignedVector<T, kVectorIn> packs[kAhead][kInputs];
  };
  GLUON_SYNCBN_HOST_DEVICE void load_ahead(const typename Tiling::Task& task, Ahead* ahead) const {
    auto walk = Walk<Tiling, kVectorIn>::of(tiling, task);
    const bool are_full = Walk<Tiling, kVectorIn>::are_full(tiling);
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      Piece& piece = ahead->pieces[i];
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
        ahead->packs[i][k] = load<kVectorIn>(inputs[k] + piece.begin);
      }
    }
    ahead->walk = walk;
  }

  GLUON_SYNCBN_HOST_DEVICE bool adds() const {
    bool any = false;
    GLUON_SYNCBN_UNROLL
    for (int k = 0; k < kOutputs; ++k) any = any || outputs[k].added;
    return any;
  }

  /// A loop that may add to an output waits for the old values between its loads of inputs. So
  /// outputs without an addition have a loop of their own.
  template <bool kMayAdd>
  GLUON_SYNCBN_HOST_DEVICE void write_all(const typename Tiling::Task& task, Ahead* ahead) const {
    Visitor<kMayAdd> visitor{inputs, {}, source, {}};
    GLUON_SYNCBN_UNROLL
    for (int k = 0; k < kOutputs; ++k) visitor.out[k] = outputs[k];
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kNumber; ++i) {
      visitor.values[i] = source.at(tiling.channel(task, static_cast<std::uint32_t>(i)));
    }
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      const Piece& piece = ahead->pieces[i];
      if (piece.end - piece.begin == kVectorIn) {
        visitor.put(piece.begin, ahead->packs[i]);
      } else {
        for (std::int64_t at = piece.begin; at < piece.end; ++at) visitor.one(at, 0);
      }
    }
    visit(tiling, &ahead->walk, &visitor);
    visit_rest(tiling, task, &visitor);
  }

  /// The number of channels in an access.
  static constexpr int kNumber = Tiling::template kChannels<kVectorIn>;

  template <bool kMayAdd>
  struct Visitor {
    static constexpr int kVector = kVectorIn;
    static constexpr int kTogether = Elementwise::kTogether;

    const T* const* inputs;
    Values values[kNumber];
    const Source& source;
    Output<T> out[kOutputs];

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
    /// Computes the outputs of one access.
    GLUON_SYNCBN_HOST_DEVICE void put(std::int64_t at, const AlignedVector<T, kVector>* packs) {
      R elements[kVector][kInputs];
      GLUON_SYNCBN_UNROLL
      for (int j = 0; j < kVector; ++j) {
        GLUON_SYNCBN_UNROLL
        for (int k = 0; k < kInputs; ++k) elements[j][k] = to_real(packs[k].at[j]);
      }
      write<kVector, kNumber>(at, values, elements);
    }
    GLUON_SYNCBN_HOST_DEVICE void one(std::int64_t at, int column) {
      R elements[1][kInputs];
      GLUON_SYNCBN_UNROLL
      for (int k = 0; k < kInputs; ++k) elements[0][k] = to_real(inputs[k][at]);
      write<1, 1>(at, &values[column], elements);
    }

   private:
    template <int N, int kOf>
    GLUON_SYNCBN_HOST_DEVICE void write(std::int64_t at, const Values* of, R (*elements)[kInputs]) {
      R results[kOutputs][N];
      source.template outputs<N, kOf>(of, elements, results);
      GLUON_SYNCBN_UNROLL
      for (int k = 0; k < kOutputs; ++k) {
        // A kernel with one output runs only if the output is wanted.
        if (kOutputs == 1 || out[k].to)
          store<N>(out[k].to + at, results[k], kMayAdd && out[k].added);
      }
    }
  };
};

}  // namespace gluon_syncbn::cuda

#pragma once

#include <cstdint>

#include "cuda/kernels/body.h"
#include "cuda/kernels/pack.h"
#include "cuda/kernels/tiling.h"
#include "cuda/kernels/visit.h"

namespace gluon_syncbn::cuda {

template <class T>
struct Output {
  T* to;     // null: not wanted, but another output is
  bool add;  // whether the kernel adds to the old values
};

/// Computes output arrays. An element depends on the input elements at the same index, and on the
/// values that `Source` (sources.h) has for its channel.
///
/// The first blocks take the end of the arrays, because the sums have read the end last. The GPU's
/// cache still holds it.
template <class Tiling, class T, class Source>
struct Elementwise {
  static constexpr const char* kName = Source::kName;
  using R = Real<T>;
  using Values = typename Source::Values;
  static constexpr int kInputs = Source::kInputs;
  static constexpr int kOutputs = Source::kOutputs;
  static constexpr int kVector = kWidest<T>;

  Tiling tiling;
  std::uint32_t last_block;
  const T* inputs[kInputs];
  Source source;
  Output<T> outputs[kOutputs];

  struct Shared {};
  static constexpr int kBlockThreads = kThreads;
  static constexpr int kSteps = 1;
  static constexpr int kResident = kResidentBlocks<R, Source::kIsActivated>;

  void step(int, std::uint32_t block, std::uint32_t thread, Shared*) const {
    const auto task = tiling.template task<kVector>(last_block - block, thread);
    if (!task.exists) return;
    auto walk = Walk<Tiling, kVector>::of(tiling, task);
    Accesses accesses;
    bool has_some = load_next(&walk, &accesses);
    Values values[kNumber];
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kNumber; ++i) {
      values[i] = source.at(tiling.channel(task, static_cast<std::uint32_t>(i)));
    }
    GLUON_SYNCBN_NO_UNROLL
    while (has_some) {
      GLUON_SYNCBN_UNROLL
      for (int i = 0; i < kTogether; ++i) write(accesses.pieces[i], accesses.packs[i], values);
      has_some = load_next(&walk, &accesses);
    }
  }

 private:
  static constexpr int kTogether = 2;
  /// The number of channels in an access.
  static constexpr int kNumber = Tiling::template kChannels<kVector>;

  /// Accesses whose loads overlap. The first loads come before the loads of the channels' values,
  /// so that these overlap as well.
  struct Accesses {
    Piece pieces[kTogether];
    Pack<T> packs[kTogether][kInputs];
  };
  /// Returns whether there were any.
  bool load_next(Walk<Tiling, kVector>* walk, Accesses* accesses) const {
    const bool has_some = walk->has_next();
    GLUON_SYNCBN_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const Piece piece = walk->next(tiling);
      accesses->pieces[i] = piece;
      GLUON_SYNCBN_UNROLL
      for (int k = 0; k < kInputs; ++k) {
        accesses->packs[i][k] =
            load(inputs[k] + piece.begin, piece.size, tiling.template has_halves<T>());
      }
    }
    return has_some;
  }

  /// Computes the outputs of an access.
  void write(const Piece& piece, const Pack<T>* packs, const Values* values) const {
    if (piece.size == 0) return;
    R elements[kVector][kInputs];
    GLUON_SYNCBN_UNROLL
    for (int j = 0; j < kVector; ++j) {
      GLUON_SYNCBN_UNROLL
      for (int k = 0; k < kInputs; ++k) elements[j][k] = packs[k].real(j);
    }
    R results[kOutputs][kVector];
    source.template outputs<kVector, kNumber>(values, elements, results);
    GLUON_SYNCBN_UNROLL
    for (int k = 0; k < kOutputs; ++k) {
      const Output<T>& output = outputs[k];
      // A kernel with one output runs only if the output is wanted.
      if (kOutputs > 1 && !output.to) continue;
      store(output.to + piece.begin, piece.size, results[k], output.add,
            tiling.template has_halves<T>());
    }
  }
};

}  // namespace gluon_syncbn::cuda

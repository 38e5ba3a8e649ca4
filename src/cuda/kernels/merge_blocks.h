#pragma once

#include <cstdint>

#include "cuda/kernels/body.h"
#include "cuda/kernels/messages.h"
#include "cuda/kernels/tiling.h"

namespace gluon_syncbn::cuda {

/// Merges the results that the blocks of Reduce leave for each channel. It merges in double. The
/// number of results alone determines the order.
template <class Accumulator>
struct MergeBlocks {
  static constexpr const char* kName = "merge of partial sums";
  using Result = typename Accumulator::Result;
  using InDouble = typename Accumulator::InDouble;

  const Result* results;
  ResultPlaces places;
  std::int64_t channels;
  typename Accumulator::Gate::Parameters parameters;
  Message message;

  // Two results of moments in float fill a sector of 32 bytes, the GPU's unit of reading.
  static constexpr std::uint32_t kLeastChannels = 2;
  // After the first step, a thread merges at most so many results of the step before.
  static constexpr std::uint32_t kMerged = 8;

  struct Shared {
    InDouble parts[kThreads];
  };
  static constexpr int kBlockThreads = kThreads;
  static constexpr int kSteps = 3;
  static constexpr int kResident = kResidentBlocks<double, false>;

  /// The number of threads per channel in the first step.
  std::uint32_t threads() const {
    return places.number > kMerged * kMerged ? kThreads / kLeastChannels : kMerged;
  }
  std::int64_t blocks() const {
    const std::int64_t at_once = kThreads / threads();
    return (channels + at_once - 1) / at_once;
  }

  void step(int step, std::uint32_t block, std::uint32_t thread, Shared* shared) const {
    const std::uint32_t at_once = kThreads / threads();
    const std::uint32_t channel = block * at_once + thread % at_once;
    const std::uint32_t parts = step == 0 ? threads() : step == 1 ? kMerged : 1;
    if (channel >= channels || thread >= parts * at_once) return;
    if (step == 1 && parts == threads()) return;  // The first step has left no more parts.
    InDouble all{};
    if (step == 0) {
      merge<Result>(thread / at_once, parts, places.number, &all,
                    [&](std::uint32_t i) { return results[places.of(channel, i)]; });
    } else {
      const std::uint32_t most = kMerged * parts;
      merge<InDouble>(
          thread / at_once, parts, places.number < most ? places.number : most, &all,
          [&](std::uint32_t i) { return shared->parts[i * at_once + thread % at_once]; });
    }
    if (step < 2) {
      shared->parts[thread] = all;  // No other thread reads this place in this step.
    } else {
      message.put(channel, Accumulator::finish(all, parameters, channel));
    }
  }

 private:
  /// Merges every `distance`-th of `number` results into `all`, from `first` on and in this order.
  template <class From, class Get>
  static void merge(std::uint32_t first, std::uint32_t distance, std::uint32_t number,
                    InDouble* all, const Get& get) {
    // Registers hold this many results, whose loads overlap.
    constexpr std::uint32_t kAtOnce = sizeof(From) > 16 ? 4 : 8;
    for (std::uint32_t begin = first; begin < number; begin += kAtOnce * distance) {
      From some[kAtOnce];
      GLUON_SYNCBN_UNROLL
      for (std::uint32_t i = 0; i < kAtOnce; ++i) {
        if (begin + i * distance < number) some[i] = get(begin + i * distance);
      }
      // Many GPUs have few units for double. So it adds only results that exist.
      GLUON_SYNCBN_UNROLL
      for (std::uint32_t i = 0; i < kAtOnce; ++i) {
        if (begin + i * distance < number) all->add(some[i]);
      }
    }
  }
};

}  // namespace gluon_syncbn::cuda

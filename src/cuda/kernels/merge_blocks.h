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
  const double* statistic;  // a number per channel; null if the accumulator needs no statistic
  Message message;

  // Two results of moments in float fill a sector of 32 bytes, the GPU's unit of reading.
  static constexpr std::uint32_t kChannels = 2;
  // Threads per channel. Each thread merges every kParts-th result.
  static constexpr std::uint32_t kParts = kThreads / kChannels;

  struct Shared {
    InDouble parts[kThreads];
  };
  static constexpr int kSteps = 2;
  static constexpr int kResident = kResidentBlocks<double, false>;

  std::int64_t blocks() const { return (channels + kChannels - 1) / kChannels; }

  GLUON_SYNCBN_HOST_DEVICE void step(int step, std::uint32_t block, std::uint32_t thread,
                                     Shared* shared) const {
    const std::uint32_t channel = block * kChannels + thread % kChannels;
    if (channel >= channels) return;
    if (step == 0) {
      const std::uint32_t part = thread / kChannels;
      const std::uint32_t number =
          places.number > part ? (places.number - part + kParts - 1) / kParts : 0;
      shared->parts[thread] = merge_all<Result>(
          number, [&](std::uint32_t i) { return results[places.of(channel, part + i * kParts)]; });
    } else if (thread < kChannels) {
      const auto all = merge_all<InDouble>(
          places.number < kParts ? places.number : kParts,
          [&](std::uint32_t i) { return shared->parts[i * kChannels + thread]; });
      message.put(channel,
                  Accumulator::finish(all, Accumulator::kNeedsStatistic ? statistic[channel] : 0));
    }
  }

 private:
  /// Merges get(0), ..., get(number - 1) in this order. The loads of several results overlap.
  template <class From, class Get>
  GLUON_SYNCBN_HOST_DEVICE static InDouble merge_all(std::uint32_t number, const Get& get) {
    // Registers hold this many results.
    constexpr int kAtOnce = sizeof(From) > 16 ? 4 : 8;
    InDouble all{};
    for (std::uint32_t i = 0; i < number; i += kAtOnce) {
      From results[kAtOnce];
      GLUON_SYNCBN_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        results[k] = {};
        if (i + k < number) results[k] = get(i + k);
      }
      GLUON_SYNCBN_UNROLL
      for (int k = 0; k < kAtOnce; ++k) all.add(results[k]);
    }
    return all;
  }
};

}  // namespace gluon_syncbn::cuda

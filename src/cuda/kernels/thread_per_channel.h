#pragma once

#include <cstdint>

#include "cuda/kernels/body.h"

namespace gluon_syncbn::cuda {

/// The kernel with a thread for each channel, which calls work.compute(channel).
template <class Work>
struct PerChannel {
  static constexpr const char* kName = Work::kName;

  Work work;
  std::int64_t size;

  struct Shared {};
  // Merges compute in double, and many GPUs have few units for double. With a warp for each block,
  // few channels use many multiprocessors.
  static constexpr int kBlockThreads = 32;
  static constexpr int kSteps = 1;
  static constexpr int kResident = kResidentBlocks<double, false>;

  std::int64_t blocks() const { return (size + kBlockThreads - 1) / kBlockThreads; }

  void step(int, std::uint32_t block, std::uint32_t thread, Shared*) const {
    const std::int64_t c = std::int64_t{block} * kBlockThreads + thread;
    if (c < size) work.compute(c);
  }
};

}  // namespace gluon_syncbn::cuda

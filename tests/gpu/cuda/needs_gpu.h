#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "common/error.h"
#include "cuda/runtime.h"

#ifdef GLUON_SYNCBN_FAKE_CUDA
#include "cuda/fake_cuda_control.h"
#include "fake_cuda/emulated_kernel.h"
#endif

namespace gluon_syncbn::tests {

/// Skips a test, with a reason, where there are no GPUs.
inline void need_gpu() {
  if (cuda::device_count() > 0) return;
  throw Error("skipped: GPUs: " + cuda::describe_devices());
}

/// Sizes of arrays to try. Kernels on the CPU are slow, and slower under sanitizers.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t kUsualElements = 2000;
#elif defined(GLUON_SYNCBN_FAKE_CUDA)
constexpr std::int64_t kUsualElements = 30000;
#else
constexpr std::int64_t kUsualElements = 1000000;
#endif

/// One layout of so many is tried: the thread sanitizer has nothing to find in a kernel alone.
#ifdef __SANITIZE_THREAD__
constexpr std::size_t kEvery = 9;
#else
constexpr std::size_t kEvery = 1;
#endif

/// Fewer for tools under which kernels are slow.
inline const std::int64_t kMostElements = [] {
  const char* text = std::getenv("GLUON_SYNCBN_TEST_ELEMENTS");
  return text ? std::int64_t{std::atol(text)} : kUsualElements;
}();

#ifdef GLUON_SYNCBN_FAKE_CUDA
/// The orders in which kernels in lockstep are to give the same.
constexpr fake_cuda::Order kOtherOrders[] = {fake_cuda::Order::kDescending,
                                             fake_cuda::Order::kConcurrent};

/// Lets kernels run in that order for as long as it lives.
struct InOrder : Setting {
  explicit InOrder(fake_cuda::Order order) : Setting("ORDER", static_cast<long>(order)) {}
};
#else
/// A GPU has orders of its own: these are repetitions.
constexpr int kOtherOrders[] = {1, 2};

class InOrder {
 public:
  explicit InOrder(int) {}
};
#endif

}  // namespace gluon_syncbn::tests

#ifndef GLUON_SYNCBN_TESTS_NATIVE_CUDA_GPU_H_
#define GLUON_SYNCBN_TESTS_NATIVE_CUDA_GPU_H_

#include <cstddef>
#include <cstdint>

#include "core/cuda/runtime.h"

#ifdef GLUON_SYNCBN_EMULATED_CUDA
#include "emulation/emulation.h"
#include "emulation/lockstep.h"
#endif

/// Leaves a test case, with a reason, where it cannot run.
#define GLUON_SYNCBN_NEEDS_GPU()                                          \
  if (gluon_syncbn::cuda::device_count() == 0) {                          \
    MESSAGE("skipped: GPUs: " << gluon_syncbn::cuda::describe_devices()); \
    return;                                                               \
  }                                                                       \
  static_cast<void>(0)

namespace gluon_syncbn::tests {

#ifdef GLUON_SYNCBN_EMULATED_CUDA
/// Arrays of layouts to try, and how many of these. Emulated kernels are slow, and slower under the
/// thread sanitizer, which has nothing to find in a kernel alone.
#if defined(__SANITIZE_THREAD__)
constexpr std::int64_t kMostElements = 2000;
constexpr std::size_t kEvery = 9;
#elif defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t kMostElements = 2000;
constexpr std::size_t kEvery = 1;
#else
constexpr std::int64_t kMostElements = 30000;
constexpr std::size_t kEvery = 1;
#endif

class OtherThreadOrder {
 public:
  OtherThreadOrder() { thread_order() = ThreadOrder::kDescending; }
  ~OtherThreadOrder() { thread_order() = ThreadOrder::kAscending; }
  OtherThreadOrder(const OtherThreadOrder&) = delete;
  OtherThreadOrder& operator=(const OtherThreadOrder&) = delete;
};
#else
constexpr std::int64_t kMostElements = 1000000;
constexpr std::size_t kEvery = 1;

class OtherThreadOrder {
 public:
  OtherThreadOrder() {}
};
#endif

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_CUDA_GPU_H_

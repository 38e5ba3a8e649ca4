// The check of mixed precision for overflows: MultiAllFiniteGPUKernel<float>(arrays, result)

#include <cmath>
#include <cstddef>

#include "kernels/forms.h"

namespace fake_cuda {
namespace {

/// The first argument, as it lies in memory.
struct Arrays {
  static constexpr int kMost = 200;
  int count;
  std::size_t max_size;
  std::size_t sizes[kMost];
  float* arrays[kMost];
};

}  // namespace

Task all_finite(const Launch& launch) {
  if (launch.name.head != "MultiAllFiniteGPUKernel") return {};
  if (launch.name.arguments[0].head != "float") return {};
  return [of = launch.argument<Arrays>(0), result = launch.argument<float*>(1)] {
    for (int k = 0; k < of.count; ++k) {
      for (std::size_t i = 0; i < of.sizes[k]; ++i) {
        if (!std::isfinite(of.arrays[k][i])) *result = 0;
      }
    }
  };
}

}  // namespace fake_cuda

#pragma once

#include <cstdint>

namespace gluon_syncbn::cuda {

/// Division by a number that the host knows, as a product and a shift, because GPUs have no
/// instruction for division. Dividends and divisors are below 2^31.
///
/// T. Granlund and P. L. Montgomery, "Division by invariant integers using multiplication", 1994,
/// figure 4.1.
struct FastDivisor {
  std::uint32_t divisor;
  std::uint32_t multiplier;
  std::uint32_t shift;

  static FastDivisor of(std::uint32_t divisor) {
    std::uint32_t shift = 0;
    while ((std::uint64_t{1} << shift) < divisor) ++shift;
    const std::uint64_t rest = (std::uint64_t{1} << shift) - divisor;
    return {divisor, static_cast<std::uint32_t>((rest << 32) / divisor + 1), shift};
  }

  std::uint32_t quotient(std::uint32_t dividend) const {
#ifdef __CUDA_ARCH__
    const std::uint32_t high = __umulhi(dividend, multiplier);
#else
    const auto high =
        static_cast<std::uint32_t>((std::uint64_t{dividend} * std::uint64_t{multiplier}) >> 32);
#endif
    return (high + dividend) >> shift;
  }
  std::uint32_t remainder(std::uint32_t dividend) const {
    return dividend - quotient(dividend) * divisor;
  }
};

}  // namespace gluon_syncbn::cuda

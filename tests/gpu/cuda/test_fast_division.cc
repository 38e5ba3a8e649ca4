#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/kernels/fast_division.h"

namespace gluon_syncbn::tests {

TEST_CASE("cuda division by a product and a shift is exact below 2^31") {
  constexpr std::uint32_t kEnd = std::uint32_t{1} << 31;
  std::vector<std::uint32_t> divisors{3, 7, 49, 196, 641, 12544, 6700417, kEnd - 1};
  for (std::uint32_t power = 1; power < kEnd && power != 0; power *= 2) {
    for (const std::uint32_t divisor : {power - 1, power, power + 1}) {
      if (divisor > 0) divisors.push_back(divisor);
    }
  }
  std::size_t wrong = 0;
  for (const std::uint32_t divisor : divisors) {
    const auto fast = cuda::FastDivisor::of(divisor);
    const auto check = [&](std::uint32_t dividend) {
      if (dividend >= kEnd) return;
      if (fast.quotient(dividend) != dividend / divisor) ++wrong;
      if (fast.remainder(dividend) != dividend % divisor) ++wrong;
    };
    // Where quotients change, from the first multiples to the last.
    const std::uint32_t last = (kEnd - 1) / divisor;
    for (std::uint32_t i = 0; i <= 100; ++i) {
      for (const std::uint32_t quotient : {i, last / 101 * i, last - (i < last ? i : last)}) {
        check(quotient * divisor);
        check(quotient * divisor + 1);
        check(quotient * divisor - 1);
      }
    }
    check(kEnd - 1);
  }
  CHECK(wrong == 0);
}

}  // namespace gluon_syncbn::tests

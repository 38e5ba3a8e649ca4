#pragma once

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

namespace gluon_syncbn::tests {

/// Returns `number` seeds from `first` on. A test draws a case from each. TEST_SEED and TEST_CASES
/// in the environment replace `first` and `number`, for a case that failed or for a longer run.
inline std::vector<std::uint32_t> seeds(std::uint32_t first, std::uint32_t number) {
  const auto chosen = [](const char* name, std::uint32_t otherwise) {
    const char* text = std::getenv(name);
    return text ? static_cast<std::uint32_t>(std::stoul(text)) : otherwise;
  };
  std::vector<std::uint32_t> seeds(chosen("TEST_CASES", number));
  std::iota(seeds.begin(), seeds.end(), chosen("TEST_SEED", first));
  return seeds;
}

}  // namespace gluon_syncbn::tests

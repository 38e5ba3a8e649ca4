#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "fake_cuda/emulated_kernel.h"

namespace gluon_syncbn::tests {

using fake_cuda::Order;

/// Runs a block of a kernel: all threads take a step of `body` before one of them takes the next.
template <class Body>
void run_block(const Body& body, std::int64_t block, bool descending) {
  using Shared = typename Body::Shared;
  static_assert(std::is_trivially_default_constructible_v<Shared>, "as __shared__ asks for");
  const auto shared = std::make_unique<Shared>();
  std::memset(static_cast<void*>(shared.get()), 0xff, sizeof(Shared));  // no numbers
  for (int step = 0; step < Body::kSteps; ++step) {
    for (int i = 0; i < Body::kBlockThreads; ++i) {
      const int thread = descending ? Body::kBlockThreads - 1 - i : i;
      body.step(step, static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(thread),
                shared.get());
    }
  }
}

/// Runs what a kernel runs on the CPU.
template <class Body>
void run_in_lockstep(const Body& body, std::int64_t blocks, Order order) {
  if (order != Order::kConcurrent) {
    const bool descending = order == Order::kDescending;
    for (std::int64_t i = 0; i < blocks; ++i) {
      run_block(body, descending ? blocks - 1 - i : i, descending);
    }
    return;
  }
  constexpr std::int64_t kTogether = 4;
  for (std::int64_t first = 0; first < blocks; first += kTogether) {
    std::vector<std::thread> threads;
    for (std::int64_t i = first; i < std::min(first + kTogether, blocks); ++i) {
      threads.emplace_back(run_block<Body>, body, i, false);
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace gluon_syncbn::tests

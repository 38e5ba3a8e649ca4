#ifndef GLUON_SYNCBN_TESTS_NATIVE_EMULATION_LOCKSTEP_H_
#define GLUON_SYNCBN_TESTS_NATIVE_EMULATION_LOCKSTEP_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "cuda/kernels/tiling.h"

namespace gluon_syncbn::tests {

/// The order in which blocks run, and the threads of a block take a step. A GPU takes any: results
/// may not differ.
enum class Order {
  kAscending,
  kDescending,
  kInterleaved,  ///< several blocks take each step one after the other
  kConcurrent,   ///< several blocks run at the same time
};

inline Order& order_of_kernels() {
  static Order order = Order::kAscending;
  return order;
}

/// One block of a kernel. Memory of block and threads begins as bytes that are no number.
template <class Body>
class Block {
 public:
  using Shared = typename Body::Shared;
  using Thread = typename Body::Thread;
  static_assert(std::is_trivially_default_constructible_v<Shared>, "as __shared__ asks for");
  static_assert(std::is_trivially_copyable_v<Thread>);

  Block() : shared_(1), threads_(cuda::kThreads) {}

  void begin(std::int64_t number) {
    number_ = number;
    goes_on_ = true;
    std::memset(static_cast<void*>(shared_.data()), 0xff, sizeof(Shared));
    std::memset(static_cast<void*>(threads_.data()), 0xff, sizeof(Thread) * threads_.size());
  }

  /// All threads take the step, if the block is not done.
  void step(const Body& body, int step, bool descending) {
    if (!goes_on_) return;
    int going_on = 0;
    for (int i = 0; i < cuda::kThreads; ++i) {
      const int thread = descending ? cuda::kThreads - 1 - i : i;
      Thread* self = &threads_[static_cast<std::size_t>(thread)];
      if (body.step(step, static_cast<std::uint32_t>(number_), static_cast<std::uint32_t>(thread),
                    self, shared_.data())) {
        ++going_on;
      }
    }
    // On a GPU the others would wait for those that are gone.
    if (going_on != 0 && going_on != cuda::kThreads) {
      throw std::logic_error(std::string("threads of a block disagree in kernel '") + Body::kName +
                             "', step " + std::to_string(step));
    }
    goes_on_ = going_on > 0;
  }

 private:
  std::int64_t number_ = 0;
  bool goes_on_ = false;
  std::vector<Shared> shared_;
  std::vector<Thread> threads_;
};

/// Runs what a kernel runs on the CPU: for every block, each step of `body` by all threads before
/// the next step.
template <class Body>
void run_in_lockstep(const Body& body, std::int64_t blocks, Order order) {
  constexpr std::int64_t kTogether = 4;
  const bool descending = order == Order::kDescending;
  const bool together = order == Order::kInterleaved || order == Order::kConcurrent;
  std::vector<Block<Body>> running(static_cast<std::size_t>(together ? kTogether : 1));
  const auto size = static_cast<std::int64_t>(running.size());
  const auto run_steps = [&](Block<Body>* block) {
    for (int step = 0; step < Body::kSteps; ++step) block->step(body, step, descending);
  };
  for (std::int64_t first = 0; first < blocks; first += size) {
    const std::int64_t number = std::min(size, blocks - first);
    for (std::int64_t i = 0; i < number; ++i) {
      running[static_cast<std::size_t>(i)].begin(descending ? blocks - 1 - first - i : first + i);
    }
    if (order == Order::kConcurrent) {
      std::vector<std::thread> threads;
      for (std::int64_t i = 0; i < number; ++i) {
        threads.emplace_back(run_steps, &running[static_cast<std::size_t>(i)]);
      }
      for (std::thread& thread : threads) thread.join();
    } else if (order == Order::kInterleaved) {
      for (int step = 0; step < Body::kSteps; ++step) {
        for (std::int64_t i = 0; i < number; ++i) {
          running[static_cast<std::size_t>(i)].step(body, step, false);
        }
      }
    } else {
      run_steps(&running.front());
    }
  }
}

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_EMULATION_LOCKSTEP_H_

#ifndef GLUON_SYNCBN_TESTS_NATIVE_EMULATION_LOCKSTEP_H_
#define GLUON_SYNCBN_TESTS_NATIVE_EMULATION_LOCKSTEP_H_

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/cuda/partition.h"

namespace gluon_syncbn::tests {

/// The order in which the threads of a block take a step. A GPU takes any: results may not differ.
enum class ThreadOrder { kAscending, kDescending };

inline ThreadOrder& thread_order() {
  static ThreadOrder order = ThreadOrder::kAscending;
  return order;
}

/// Runs what a kernel runs, on this thread: for every block, each step of `body` by all threads
/// before the next step. Memory of blocks and threads begins as bytes that are no number.
template <class Body>
void run_in_lockstep(const Body& body, std::int64_t blocks, ThreadOrder order) {
  using Shared = typename Body::Shared;
  using Thread = typename Body::Thread;
  static_assert(std::is_trivially_default_constructible_v<Shared>, "as __shared__ asks for");
  static_assert(std::is_trivially_copyable_v<Thread>);
  std::vector<Shared> shared(1);
  std::vector<Thread> threads(cuda::kThreads);
  for (std::int64_t block = 0; block < blocks; ++block) {
    std::memset(static_cast<void*>(shared.data()), 0xff, sizeof(Shared));
    std::memset(static_cast<void*>(threads.data()), 0xff, sizeof(Thread) * threads.size());
    for (int step = 0; step < Body::kSteps; ++step) {
      for (int i = 0; i < cuda::kThreads; ++i) {
        const int thread = order == ThreadOrder::kAscending ? i : cuda::kThreads - 1 - i;
        body.step(step, block, thread, &threads[static_cast<std::size_t>(thread)], shared.data());
      }
    }
  }
}

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_EMULATION_LOCKSTEP_H_

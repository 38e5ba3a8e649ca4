#ifndef GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_RANKS_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_RANKS_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/device.h"
#include "common/watchdog.h"
#include "sync/reduction.h"

namespace gluon_syncbn::tests {

/// Runs run(rank) for every rank on a thread of its own, all released at once. Joins all of them,
/// then rethrows what the first of them threw.
inline void run_ranks(std::size_t ranks, const std::function<void(std::size_t)>& run) {
  std::atomic<std::size_t> ready{0};
  std::mutex mutex;
  std::exception_ptr first_error;
  std::vector<std::thread> threads;
  threads.reserve(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ++ready;
      while (ready < ranks) std::this_thread::yield();
      try {
        run(rank);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!first_error) first_error = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first_error) std::rethrow_exception(first_error);
}

/// The device of a rank. Devices sort in another order than ranks, and not as their names do.
inline Device device_of(std::size_t rank) {
  return {rank % 3 == 2 ? "cpu_pinned" : "cpu", static_cast<int>((rank * 5 + 9) % 16)};
}

/// Keeps everything that a continuation is called with. Copies share what they keep.
template <class Part>
class Inbox {
 public:
  struct Call {
    Outcome<Part> outcome;
    CalledOn called_on;
    std::thread::id thread;
  };

  typename Exchange<Part>::Continuation continuation() const {
    return [state = state_](const Outcome<Part>& outcome, CalledOn called_on) {
      const std::lock_guard<std::mutex> lock(state->mutex);
      state->calls.push_back({outcome, called_on, std::this_thread::get_id()});
      state->called.notify_all();
    };
  }

  /// The first call. Throws where none comes, so that a lost outcome fails the test and does not
  /// hang it.
  Call wait() const {
    std::unique_lock<std::mutex> lock(state_->mutex);
    const auto called = [&] { return !state_->calls.empty(); };
    if (!state_->called.wait_for(lock, std::chrono::seconds(60), called)) {
      throw std::runtime_error("a continuation was not called");
    }
    return state_->calls.front();
  }

  std::vector<Call> calls() const {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->calls;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable called;
    std::vector<Call> calls;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// Sets the timeout of the watchdog and restores the former one.
class ScopedTimeout {
 public:
  explicit ScopedTimeout(double seconds) : before_(Watchdog::instance().timeout()) {
    Watchdog::instance().set_timeout(seconds);
  }
  ~ScopedTimeout() { Watchdog::instance().set_timeout(before_); }
  ScopedTimeout(const ScopedTimeout&) = delete;
  ScopedTimeout& operator=(const ScopedTimeout&) = delete;

 private:
  const double before_;
};

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SUPPORT_RANKS_H_

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/device.h"
#include "common/watchdog.h"

namespace gluon_syncbn::tests {

/// Calls run(rank) for every rank on its own thread, all at the same time. Joins all threads, and
/// then rethrows the exception of the lowest rank that threw one.
inline void run_ranks(std::size_t ranks, const std::function<void(std::size_t)>& run) {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t ready = 0;
  std::exception_ptr first_error;
  std::vector<std::thread> threads;
  threads.reserve(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      {
        // They sleep until then, because spinning threads would take the cores from the last one.
        std::unique_lock<std::mutex> lock(mutex);
        if (++ready == ranks) changed.notify_all();
        changed.wait(lock, [&] { return ready == ranks; });
      }
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

/// The type of the devices that are tested: GLUON_SYNCBN_TEST_DEVICE, which is cpu by default.
inline std::string tested_type() {
  const char* type = std::getenv("GLUON_SYNCBN_TEST_DEVICE");
  return type ? type : "cpu";
}

/// The device of a rank. The order of devices is neither that of ranks nor that of their names.
inline Device device_of(std::size_t rank) { return {"cpu", static_cast<int>((rank * 5 + 9) % 16)}; }

/// Sets the timeout of the watchdog, and restores the former one in the end.
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

/// Sets a variable of the environment, or removes it, and restores it in the end.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~ScopedVariable() { set(before_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  void set(const std::optional<std::string>& value) const {
    if (value) {
      setenv(name_, value->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

  const char* const name_;
  std::optional<std::string> before_;
};

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace gluon_syncbn::tests

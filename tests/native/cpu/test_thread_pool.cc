#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cpu/thread_pool.h"
#include "support/refused_threads.h"
#include "support/wait_until.h"

namespace gluon_syncbn::tests {
namespace {

/// Sets the number of threads for as long as it lives.
class Threads {
 public:
  explicit Threads(int number) : before_(cpu::num_threads()) { cpu::set_num_threads(number); }
  ~Threads() { cpu::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

bool does_each_once(std::int64_t number) {
  std::vector<int> done(static_cast<std::size_t>(number));
  cpu::parallel_for(number, [&](std::int64_t i) { ++done[static_cast<std::size_t>(i)]; });
  for (const int times : done) {
    if (times != 1) return false;
  }
  return true;
}

bool is_asleep(pid_t thread) {
  std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
  for (std::string word; status >> word;) {
    if (word == "State:") return status >> word && word == "S";
  }
  return false;
}

}  // namespace

TEST_CASE("parallel: every part is done once, however many threads there are") {
  for (const int threads : {1, 2, 3, 8}) {
    const Threads guard(threads);
    CHECK(cpu::num_threads() == threads);
    for (const std::int64_t number : {0, 1, 2, 15, 16, 17, 1000}) CHECK(does_each_once(number));
  }
}

TEST_CASE("parallel: no more threads compute at once than there are devices and threads") {
  const Threads guard(3);
  std::atomic<int> computing{0};
  std::atomic<int> most{0};
  cpu::parallel_for(500, [&](std::int64_t) {
    const int now = ++computing;
    int seen = most.load();
    while (seen < now && !most.compare_exchange_weak(seen, now)) {
    }
    std::this_thread::yield();
    --computing;
  });
  CHECK(most.load() >= 1);
  CHECK(most.load() <= 3);
}

TEST_CASE("parallel: several callers at once, again and again") {
  const Threads guard(4);
  std::atomic<int> failures{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        if (!does_each_once(20 + round % 30)) ++failures;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(failures.load() == 0);
}

TEST_CASE("parallel: a helper that left for another caller comes back after that caller") {
  const Threads guard(2);
  const pid_t caller = gettid();
  std::atomic<int> early{0};  // parts that began before the other caller
  std::atomic<int> late{0};   // parts that began after it
  std::atomic<pid_t> helper{0};
  std::atomic<bool> other_has_begun{false};
  std::atomic<bool> other_has_ended{false};
  std::atomic<bool> helper_has_left{false};
  std::atomic<bool> waited_in_vain{false};
  std::thread other([&] {
    wait_until([&] { return early == 2; });
    cpu::parallel_for(1, [&](std::int64_t) {
      other_has_begun = true;
      helper_has_left = wait_until([&] { return helper != 0 && is_asleep(helper); });
    });
    other_has_ended = true;
  });
  cpu::parallel_for(20, [&](std::int64_t) {
    if (!other_has_begun) {
      ++early;
      wait_until([&] { return other_has_begun.load(); });
      if (gettid() != caller) helper = gettid();
      return;
    }
    wait_until([&] { return other_has_ended.load(); });
    ++late;
    if (!waited_in_vain && !wait_until([&] { return late >= 2; })) waited_in_vain = true;
  });
  other.join();
  CHECK(early.load() == 2);
  CHECK(helper_has_left.load());
  CHECK_FALSE(waited_in_vain.load());
}

// The thread sanitizer does not support threads in a child of a process that has some.
#ifndef __SANITIZE_THREAD__
TEST_CASE("parallel: a child of fork computes alone") {
  const Threads guard(4);
  REQUIRE(does_each_once(100));
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(does_each_once(100) ? 0 : 1);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(does_each_once(100));
}
#endif

TEST_CASE("parallel: without threads the caller computes alone") {
  // More than any test before has started.
  const Threads guard(64);
  const RefusedThreads no_threads(0);
  CHECK(does_each_once(1000));
}

TEST_CASE("parallel: what a part throws reaches the caller, on whichever thread it ran") {
  for (int repeat = 0; repeat < 50; ++repeat) {
    for (const std::int64_t bad : {0, 50, 99}) {
      const auto run = [bad] {
        cpu::parallel_for(100, [bad](std::int64_t i) {
          if (i == bad) throw std::runtime_error("part failed");
        });
      };
      CHECK_THROWS_WITH_AS(run(), "part failed", std::runtime_error);
    }
  }
  std::atomic<int> done{0};
  cpu::parallel_for(100, [&](std::int64_t) { ++done; });
  CHECK(done == 100);
}

}  // namespace gluon_syncbn::tests

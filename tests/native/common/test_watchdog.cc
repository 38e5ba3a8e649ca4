#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/other_threads.h"
#include "common/watchdog.h"
#include "support/inbox.h"
#include "support/ranks.h"
#include "support/refused_threads.h"

namespace gluon_syncbn::tests {
namespace {

const Part kPart{Direction::kForward, statistics_of(1, {1.0}, {0.0})};

/// Lets a thread wait as MXNet does. Other means of C++ wait for futexes that are not private.
class Signal {
 public:
  void give() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_given_ = true;
    given_.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    given_.wait(lock, [&] { return is_given_; });
  }
  bool wait_for(std::chrono::milliseconds time) {
    std::unique_lock<std::mutex> lock(mutex_);
    return given_.wait_for(lock, time, [&] { return is_given_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable given_;
  bool is_given_ = false;
};

/// How often the threads of this process other than the caller have gone to sleep.
long sleeps_of_other_threads() {
  long sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      long number = 0;
      if (word == "voluntary_ctxt_switches:" && status >> number) sum += number;
    }
  }
  return sum;
}

}  // namespace

TEST_CASE("watchdog: while a kernel is compiled, no wait counts") {
  const ScopedTimeout timeout(0.3);
  const LoneMeeting meeting("layer", 2, 0);
  const Inbox first;
  auto pause = std::make_unique<Watchdog::Pause>();
  arrive(*meeting, {"cpu", 0}, kPart, first.then());
  std::this_thread::sleep_for(std::chrono::seconds(1));
  CHECK(first.calls().empty());
  pause = nullptr;
  CHECK_FALSE(first.wait().outcome.error.empty());
}

TEST_CASE("watchdog: raising the timeout from 0 fails nobody") {
  const ScopedTimeout restore(300);
  for (int repeat = 0; repeat < 20; ++repeat) {
    Watchdog::instance().set_timeout(0);
    const LoneMeeting meeting("layer", 2, 0);
    const Inbox first;
    const Inbox second;
    arrive(*meeting, {"cpu", 0}, kPart, first.then());
    Watchdog::instance().set_timeout(300);
    // The watchdog's thread is to have looked at the meeting.
    std::this_thread::sleep_for(std::chrono::milliseconds(15));
    arrive(*meeting, {"cpu", 1}, kPart, second.then());
    CHECK(first.wait().outcome.error == "");
    CHECK(second.wait().outcome.error == "");
  }
}

TEST_CASE("watchdog: with timeout 0 no round wakes it") {
  const ScopedTimeout forever(0);
  {
    // Its thread runs, and has nothing to watch.
    const Inbox inbox;
    const LoneMeeting meeting("layer", 2, 0);
    arrive(*meeting, {"cpu", 0}, kPart, inbox.then());
    meeting->fail("not needed");
  }
  constexpr int kRounds = 40;
  const long before = sleeps_of_other_threads();
  for (int round = 0; round < kRounds; ++round) {
    const Inbox inbox;
    const LoneMeeting meeting("layer", 2, 0);
    arrive(*meeting, {"cpu", 0}, kPart, inbox.then());
    std::this_thread::sleep_for(std::chrono::milliseconds(15));
    arrive(*meeting, {"cpu", 1}, kPart, inbox.then());
  }
  CHECK(sleeps_of_other_threads() - before < kRounds / 2);
}

TEST_CASE("watchdog: what waits is interrupted once the other threads have nothing to do") {
  const ScopedTimeout forever(0);
  const Inbox inbox;
  const LoneMeeting meeting("layer", 2, 0);
  arrive(*meeting, {"cpu", 0}, kPart, inbox.then());
  std::atomic<bool> told_while_busy{false};
  std::thread busy([&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2500);
    while (std::chrono::steady_clock::now() < end) {
      if (!inbox.calls().empty()) told_while_busy = true;
    }
  });
  Watchdog::instance().interrupt_when_idle(Interruption{"a reason", Interruption::kMayGoOn});
  CHECK(inbox.wait().outcome.error == "layer round 0 forward: a reason");
  Watchdog::instance().interrupt_when_idle(std::nullopt);
  busy.join();
  CHECK(!told_while_busy);
}

TEST_CASE("watchdog: what waits fails if the program stands still") {
  const ScopedTimeout forever(0);
  Signal failed;
  std::string error;
  const LoneMeeting meeting("layer", 2, 0);
  arrive(*meeting, {"cpu", 0}, kPart, [&](const Outcome& outcome) {
    error = outcome.error;
    failed.give();
  });
  set_ask_python([](const int*, int, int, char* place, int size) {
    std::snprintf(place, static_cast<std::size_t>(size), "train.py:22");
    return static_cast<int>(kStandsStill);
  });
  failed.wait();
  set_ask_python(nullptr);
  CHECK(contains(error,
                 "layer round 0 forward: no thread of the program can make the missing calls; the "
                 "program waits in MXNet at train.py:22.\nCame: cpu(0). Missing: "));
}

TEST_CASE("watchdog: threads that only another thread can wake") {
  Signal end;
  std::promise<int> waiting;
  std::promise<int> sleeping;
  std::thread first([&] {
    waiting.set_value(thread_id());
    end.wait();
  });
  std::thread second([&] {
    sleeping.set_value(thread_id());
    while (!end.wait_for(std::chrono::milliseconds(50))) {
    }
  });
  const int needs_another = waiting.get_future().get();
  const int goes_on = sleeping.get_future().get();
  const auto may_go_on = [](int thread) {
    const auto threads = threads_that_may_go_on({thread_id()});
    return std::find(threads.begin(), threads.end(), thread) != threads.end();
  };
  bool is_found = false;
  for (int i = 0; i < 1000 && !is_found; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    is_found = !may_go_on(needs_another);
    CHECK(may_go_on(goes_on));
  }
  CHECK(is_found);
  end.give();
  first.join();
  second.join();
}

TEST_CASE("watchdog: a thread that ends while its state is read counts as idle") {
  std::atomic<bool> stop{false};
  std::thread source([&] {
    while (!stop) {
      std::thread first([] {});
      std::thread second([] {});
      first.join();
      second.join();
    }
  });
  OtherThreads others;
  // A few observations meet the end of a thread between the open and the read of its file.
  CHECK_NOTHROW([&] {
    for (int i = 0; i < 20000; ++i) others.observe_idle();
  }());
  stop = true;
  source.join();
}

TEST_CASE(
    "watchdog: the reminder comes after a tenth of the timeout, and after 10 s at the latest") {
  using Seconds = Waiting::Seconds;
  CHECK(Watchdog::remind_after(Seconds(50)) == Seconds(5));
  CHECK(Watchdog::remind_after(Seconds(300)) == Seconds(10));
  CHECK(Watchdog::remind_after(Seconds(86400)) == Seconds(10));
}

TEST_CASE("watchdog: what ends with its reminder does not lock the watchdog out") {
  struct Brief : Waiting {
    explicit Brief(std::promise<void>* ended_in) : ended(ended_in) {}
    ~Brief() override {
      Watchdog::instance().unwatch(this);
      ended->set_value();
    }
    // Its owner lets go just then.
    void remind(Seconds, Seconds, const ProgramState&) override { owner.reset(); }
    void give_up(Seconds) override {}
    void fail(const std::string&) override {}

    std::promise<void>* ended;
    std::shared_ptr<Brief> owner;
  };
  const ScopedTimeout timeout(1);
  std::promise<void> ended;
  {
    const auto brief = std::make_shared<Brief>(&ended);
    brief->owner = brief;
    REQUIRE_FALSE(Watchdog::instance().watch(brief));
  }
  CHECK(ended.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready);
}

// The thread sanitizer does not support threads in a child of a process that has some.
#ifndef __SANITIZE_THREAD__
namespace {

/// In a child of fork, which has no watchdog and no helpers yet: 0 if all is as it should be.
int without_threads() {
  const LoneMeeting meeting("layer", 2, 0);
  const Inbox first;
  const Inbox second;
  {
    const RefusedThreads no_threads(0);
    arrive(*meeting, {"cpu", 0}, kPart, first.then());
    if (first.calls().size() != 1) return 1;
    if (!contains(first.calls().front().outcome.error, "no thread could be started")) return 2;
    arrive(*meeting, {"cpu", 1}, kPart, second.then());
    if (second.calls().size() != 1) return 3;
    if (second.calls().front().outcome.error != first.calls().front().outcome.error) return 4;
  }
  if (first.calls().size() != 1) return 5;
  // Another round works once there are threads again.
  const LoneMeeting next("layer", 2, 0);
  const Inbox both;
  arrive(*next, {"cpu", 0}, kPart, both.then());
  arrive(*next, {"cpu", 1}, kPart, both.then());
  if (both.calls().size() != 2 || !both.calls().front().outcome) return 6;
  return 0;
}

}  // namespace

TEST_CASE("watchdog: where it gets no thread, all devices are told once") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(without_threads());
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif

}  // namespace gluon_syncbn::tests

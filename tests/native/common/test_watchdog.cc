#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/program.h"
#include "common/watchdog.h"
#include "support/captured_errors.h"
#include "support/inbox.h"
#include "support/ranks.h"
#include "support/refused_threads.h"

namespace gluon_syncbn::tests {
namespace {

const Part kPart{Direction::kForward, statistics_of(1, {1.0}, {0.0})};

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
  const LonePlace meeting("layer", 2, 0);
  const Inbox first;
  auto pause = std::make_unique<Watchdog::Pause>();
  arrive(meeting, {"cpu", 0}, kPart, first.then());
  std::this_thread::sleep_for(std::chrono::seconds(1));
  CHECK(first.calls().empty());
  pause = nullptr;
  CHECK_FALSE(first.wait().outcome.error.empty());
}

TEST_CASE("watchdog: raising the timeout from 0 fails nobody") {
  const ScopedTimeout restore(300);
  for (int repeat = 0; repeat < 20; ++repeat) {
    Watchdog::instance().set_timeout(0);
    const LonePlace meeting("layer", 2, 0);
    const Inbox first;
    const Inbox second;
    arrive(meeting, {"cpu", 0}, kPart, first.then());
    Watchdog::instance().set_timeout(300);
    // The watchdog's thread is to have looked at the meeting.
    std::this_thread::sleep_for(std::chrono::milliseconds(15));
    arrive(meeting, {"cpu", 1}, kPart, second.then());
    CHECK(first.wait().outcome.error == "");
    CHECK(second.wait().outcome.error == "");
  }
}

TEST_CASE("watchdog: with timeout 0 no round wakes it") {
  const ScopedTimeout forever(0);
  {
    // Its thread runs, and has nothing to watch.
    const Inbox inbox;
    const LonePlace meeting("layer", 2, 0);
    arrive(meeting, {"cpu", 0}, kPart, inbox.then());
    meeting.fail("not needed");
  }
  constexpr int kRounds = 40;
  const long before = sleeps_of_other_threads();
  for (int round = 0; round < kRounds; ++round) {
    const Inbox inbox;
    const LonePlace meeting("layer", 2, 0);
    arrive(meeting, {"cpu", 0}, kPart, inbox.then());
    std::this_thread::sleep_for(std::chrono::milliseconds(15));
    arrive(meeting, {"cpu", 1}, kPart, inbox.then());
  }
  CHECK(sleeps_of_other_threads() - before < kRounds / 2);
}

TEST_CASE("watchdog: what waits is interrupted once the other threads have nothing to do") {
  const ScopedTimeout forever(0);
  const Inbox inbox;
  const LonePlace meeting("layer", 2, 0);
  arrive(meeting, {"cpu", 0}, kPart, inbox.then());
  std::atomic<bool> told_while_busy{false};
  std::thread busy([&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2500);
    while (std::chrono::steady_clock::now() < end) {
      if (!inbox.calls().empty()) told_while_busy = true;
    }
  });
  {
    const Watchdog::EndsWhenIdle ends({"a reason", Missing::kCalls, Absent::kMayCome});
    {
      const Watchdog::EndsWhenIdle another({"no reason", Missing::kCalls, Absent::kMayCome});
    }
    CHECK(inbox.wait().outcome.error == "layer round 0 forward: a reason");
  }
  busy.join();
  CHECK(!told_while_busy);
}

namespace {

std::atomic<int> the_answer{0};
std::atomic<int> the_asks{0};

/// Python that answers in this way while it lives.
struct Python {
  explicit Python(int answer) {
    the_answer = answer;
    the_asks = 0;
    set_ask_python([](char* place, int size) {
      std::snprintf(place, static_cast<std::size_t>(size), "train.py:22");
      ++the_asks;
      return the_answer.load();
    });
  }
  ~Python() { set_ask_python(nullptr); }
  Python(const Python&) = delete;
  Python& operator=(const Python&) = delete;

  /// Until the watchdog has acted on two looks, for each of which it asks at most twice.
  void wait_for_looks() const {
    for (int i = 0; i < 3000 && the_asks < 6; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
};

}  // namespace

TEST_CASE("watchdog: what waits on CPUs fails if the only thread waits and all are idle") {
  const ScopedTimeout forever(0);
  const CapturedErrors errors;
  const LonePlace place("layer", 2, 0);
  const LonePlace on_gpus("gpu layer", 2, 0);
  const Inbox inbox;
  const Inbox of_gpu;
  arrive(place, {"cpu", 0}, kPart, inbox.then());
  arrive(on_gpus, {"gpu", 0}, kPart, of_gpu.then());
  const Python python(kWaitsAlone | kStillWaitsAlone);
  CHECK(contains(inbox.wait().outcome.error,
                 "layer round 0 forward: the only thread of the program waits in MXNet at "
                 "train.py:22, and so cannot make the missing calls.\nCame: cpu(0). Missing: "));
  python.wait_for_looks();
  CHECK(of_gpu.calls().empty());
  CHECK(contains(errors.text(), "warning: gpu layer round 0 forward has waited "));
}

TEST_CASE("watchdog: if nothing computes, it warns after 2 s, and what waits goes on") {
  const ScopedTimeout forever(0);
  const CapturedErrors errors;
  const Inbox inbox;
  const LonePlace place("layer", 2, 0);
  arrive(place, {"cpu", 0}, kPart, inbox.then());
  const Python python(kWaitsAlone | kRaisesInterrupts);  // it waits elsewhere each time
  python.wait_for_looks();
  CHECK(inbox.calls().empty());
  arrive(place, {"cpu", 1}, kPart, inbox.then());
  CHECK(inbox.wait().outcome);
  const std::string text = errors.text();
  CAPTURE(text);
  CHECK(contains(text, "warning: layer round 0 forward has waited "));
  CHECK(contains(text, "for all of 2 devices and has no timeout"));
  CHECK(contains(text, "Came: cpu(0). Missing: "));
  CHECK(contains(text, "The main thread waits in MXNet at train.py:22."));
  CHECK(text.find("warning") == text.rfind("warning"));
}

namespace {

std::atomic<int> the_presses{0};
struct sigaction the_next_handler;

/// The handler of the program, as Python's.
struct Handler {
  Handler() {
    std::signal(SIGINT, [](int) { ++the_presses; });
  }
  ~Handler() { std::signal(SIGINT, before); }
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;

  void (*const before)(int) = std::signal(SIGINT, SIG_DFL);
};

/// Has a wait, and notes how old waits must be that end.
struct Recorder : Waiting {
  ~Recorder() override { Watchdog::instance().unwatch(this); }
  bool is_late(Seconds) override { return false; }
  void remind(Missing, Seconds, Seconds, const ProgramState&) override {}
  void end_waits(const Ending& ending) override { least = ending.least.count(); }

  std::atomic<double> least{0};
};

}  // namespace

TEST_CASE("watchdog: Ctrl-C ends what has waited for a second, also if threads compute") {
  const ScopedTimeout forever(0);
  const Handler handler;
  const Python python(kRaisesInterrupts);
  const auto barrier = std::make_shared<Barrier>("layer", 2);
  const auto recorder = std::make_shared<Recorder>();
  REQUIRE_FALSE(Watchdog::instance().watch(recorder));
  const Inbox inbox;
  arrive(join(barrier, {"cpu", 0}), {"cpu", 0}, kPart, inbox.then());
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while ((inbox.calls().empty() || recorder->least == 0) &&
         std::chrono::steady_clock::now() < give_up) {
    raise(SIGINT);  // this thread computes
  }
  CHECK(recorder->least == 1);
  CHECK(inbox.wait().outcome.error ==
        "layer round 0 forward: interrupted by Ctrl-C at train.py:22");
  CHECK(the_presses > 0);
  // The step was broken off, so the next call of the other device is of the next step.
  CHECK_THROWS_WITH_AS(join(barrier, {"cpu", 1}), doctest::Contains("an earlier step has failed"),
                       Error);
}

TEST_CASE("watchdog: a handler in front of ours, which calls ours, is called once") {
  const ScopedTimeout forever(0);
  const Handler handler;
  struct sigaction first{};
  sigaction(SIGINT, nullptr, &first);
  const Python python(kRaisesInterrupts);
  const LonePlace place("layer", 2, 0);
  const Inbox inbox;
  arrive(place, {"cpu", 0}, kPart, inbox.then());
  for (int i = 0; i < 1000; ++i) {
    sigaction(SIGINT, nullptr, &the_next_handler);
    if (the_next_handler.sa_handler != first.sa_handler) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const bool is_ours = the_next_handler.sa_handler != first.sa_handler;
  REQUIRE(is_ours);
  struct sigaction library = the_next_handler;
  library.sa_sigaction = [](int signal, siginfo_t* info, void* context) {
    the_next_handler.sa_sigaction(signal, info, context);
  };
  sigaction(SIGINT, &library, nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));  // it looks every half second
  the_presses = 0;
  raise(SIGINT);
  CHECK(the_presses == 1);
  CHECK(contains(inbox.wait().outcome.error, "interrupted by Ctrl-C"));
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
  // A few looks meet the end of a thread between the open and the read of its file.
  CHECK_NOTHROW([] {
    for (int i = 0; i < 20000; ++i) any_other_thread_is_busy();
  }());
  stop = true;
  source.join();
}

TEST_CASE(
    "watchdog: the reminder comes after a tenth of the timeout, and after 10 s at the latest") {
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
    void remind(Missing, Seconds, Seconds, const ProgramState&) override { owner.reset(); }
    bool is_late(Seconds) override { return false; }
    void end_waits(const Ending&) override {}

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
  const LonePlace meeting("layer", 2, 0);
  const Inbox first;
  const Inbox second;
  {
    const RefusedThreads no_threads(0);
    arrive(meeting, {"cpu", 0}, kPart, first.then());
    if (first.calls().size() != 1) return 1;
    if (!contains(first.calls().front().outcome.error, "no thread could be started")) return 2;
    arrive(meeting, {"cpu", 1}, kPart, second.then());
    if (second.calls().size() != 1) return 3;
    if (second.calls().front().outcome.error != first.calls().front().outcome.error) return 4;
  }
  if (first.calls().size() != 1) return 5;
  // Another round works once there are threads again.
  const LonePlace next("layer", 2, 0);
  const Inbox both;
  arrive(next, {"cpu", 0}, kPart, both.then());
  arrive(next, {"cpu", 1}, kPart, both.then());
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

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/program.h"
#include "common/watchdog.h"
#include "support/captured_errors.h"
#include "support/inbox.h"
#include "support/ranks.h"
#include "support/refused_threads.h"
#include "support/wait_until.h"

namespace gluon_syncbn::tests {
namespace {

const Part kPart{Direction::kForward, statistics_of(1, {1.0}, {0.0})};

/// Has a wait, and notes what the watchdog does with it.
class Recorder : public Waiting {
 public:
  ~Recorder() override { Watchdog::instance().unwatch(this); }
  /// The last act of each look.
  bool is_late(Seconds) override {
    ++looks;
    return false;
  }
  void remind(Missing, Seconds, Seconds, const ProgramState&) override {}
  void end_waits(const Ending& ending) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    endings_.push_back(ending);
  }
  std::vector<Ending> endings() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return endings_;
  }

  std::atomic<int> looks{0};

 private:
  mutable std::mutex mutex_;
  std::vector<Ending> endings_;
};

/// A wait that the watchdog knows.
std::shared_ptr<Recorder> recorder() {
  const auto recorder = std::make_shared<Recorder>();
  REQUIRE_FALSE(Watchdog::instance().watch(recorder));
  return recorder;
}

}  // namespace

TEST_CASE("watchdog: it warns once, then ends the wait, and only then its passes fail") {
  const auto barrier = std::make_shared<Barrier>("layer", 3);
  const CapturedErrors errors;
  const Inbox inbox;
  std::string next;
  {
    const ScopedTimeout timeout(0.5);
    arrive(join(barrier, {"cpu", 4}), {"cpu", 4}, kPart, [&](const Outcome& outcome) {
      next = error_of([&] { barrier->join({"cpu", 99}); });  // a device that never came
      inbox.then()(outcome);
    });
    CHECK(inbox.wait().thread != std::this_thread::get_id());
  }
  const std::string error = inbox.wait().outcome.error;
  CAPTURE(error);
  CHECK(error.find("layer round 0 forward waited ") == 0);
  CHECK(contains(error, " s for all of 3 devices (num_devices=3).\nCame: cpu(4) (1 training "));
  CHECK(next.find("layer round 1 forward: an earlier step has failed") == 0);
  CHECK(contains(next, error));
  const std::string text = errors.text();
  CAPTURE(text);
  CHECK(text.find("gluon_syncbn: warning: layer round 0 forward has waited ") == 0);
  CHECK(contains(text, " s for all of 3 devices and fails at 0.5 s (gluon_syncbn.set_timeout).\n" +
                           error.substr(error.find("Came: "))));
  CHECK(text.find("warning") == text.rfind("warning"));
}

TEST_CASE("watchdog: a meeting that everybody has left is forgotten") {
  Inbox abandoned;
  {
    const LonePlace left("layer", 2, 0);
    arrive(left, {"cpu", 0}, kPart, abandoned.then());
  }

  // The next one to give up shows that the watchdog has passed by.
  const LonePlace meeting("layer", 2, 0);
  Inbox inbox;
  const ScopedTimeout timeout(0.01);
  arrive(meeting, {"cpu", 0}, kPart, inbox.then());
  CHECK_FALSE(inbox.wait().outcome);
  CHECK(abandoned.calls().empty());
}

TEST_CASE("watchdog: while a kernel is compiled, no wait counts") {
  const ScopedTimeout timeout(0.01);
  const LonePlace meeting("layer", 2, 0);
  const Inbox first;
  auto pause = std::make_unique<Watchdog::Pause>();
  arrive(meeting, {"cpu", 0}, kPart, first.then());
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // several looks
  CHECK(first.calls().empty());
  pause = nullptr;
  CHECK_FALSE(first.wait().outcome.error.empty());
}

TEST_CASE("watchdog: a timeout of 0 ends no wait, nor does one that has not passed") {
  const ScopedTimeout forever(0);
  const auto recorded = recorder();
  REQUIRE(wait_until([&] {
    Watchdog::instance().set_timeout(0);  // wakes it
    return recorded->looks > 2;
  }));
  CHECK(recorded->endings().empty());
  const LonePlace meeting("layer", 2, 0);
  const Inbox first;
  arrive(meeting, {"cpu", 0}, kPart, first.then());
  Watchdog::instance().set_timeout(300);
  REQUIRE(wait_until([&] { return recorded->endings().size() > 1; }));  // of waits of 300 s
  CHECK(first.calls().empty());
  Watchdog::instance().set_timeout(0.01);
  CHECK(first.wait().outcome.error.find("layer round 0 forward waited ") == 0);
  CHECK(recorded->endings().front().least.count() == 300);
}

TEST_CASE("watchdog: with timeout 0 no round wakes it") {
  const ScopedTimeout forever(0);
  const auto recorded = recorder();
  const auto round_wakes_it = [&] {
    const Inbox inbox;
    const LonePlace meeting("layer", 2, 0);
    const int before = recorded->looks;
    arrive(meeting, {"cpu", 0}, kPart, inbox.then());
    std::this_thread::sleep_for(std::chrono::milliseconds(15));
    arrive(meeting, {"cpu", 1}, kPart, inbox.then());
    return recorded->looks > before;
  };
  int with_looks = 0;  // it also looks on its own, now and then
  for (int round = 0; round < 20; ++round) with_looks += round_wakes_it() ? 1 : 0;
  CHECK(with_looks < 20);
}

TEST_CASE("watchdog: waits end once the other threads have nothing to do") {
  const ScopedTimeout forever(0);
  const Watchdog::EndsWhenIdle ends({"a reason", Missing::kCalls, Absent::kMayCome});
  {
    const Watchdog::EndsWhenIdle another({"no reason", Missing::kCalls, Absent::kMayCome});
  }
  const auto recorded = std::make_shared<Recorder>();
  std::size_t ended_while_busy = 0;
  std::thread busy([&] {
    while (recorded->looks < 2) {
    }
    ended_while_busy = recorded->endings().size();
  });
  REQUIRE_FALSE(Watchdog::instance().watch(recorded));
  busy.join();
  CHECK(ended_while_busy == 0);
  REQUIRE(wait_until([&] { return !recorded->endings().empty(); }));
  CHECK(recorded->endings().front().reason == "a reason");
  CHECK(recorded->endings().front().least.count() == 1);
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
    for (int i = 0; i < 300 && the_asks < 6; ++i) {
      // Rarely awake: on a busy machine this thread would look busy itself.
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
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

}  // namespace

TEST_CASE("watchdog: Ctrl-C ends what has waited for a second, also if threads compute") {
  const ScopedTimeout forever(0);
  const Handler handler;
  const Python python(kRaisesInterrupts);
  const auto barrier = std::make_shared<Barrier>("layer", 2);
  const auto recorded = recorder();
  const Inbox inbox;
  arrive(join(barrier, {"cpu", 0}), {"cpu", 0}, kPart, inbox.then());
  const auto give_up = Watchdog::Clock::now() + std::chrono::minutes(1);
  while ((inbox.calls().empty() || recorded->endings().empty()) &&
         Watchdog::Clock::now() < give_up) {
    raise(SIGINT);  // this thread computes
  }
  REQUIRE_FALSE(recorded->endings().empty());
  CHECK(recorded->endings().front().least.count() == 1);
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

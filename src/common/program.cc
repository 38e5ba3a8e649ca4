#include "common/program.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "common/other_threads.h"

namespace gluon_syncbn {
namespace {

constexpr int kBusyLooks = 10;
constexpr std::chrono::milliseconds kBetweenBusyLooks{10};
constexpr std::size_t kLongestPlace = 1000;

std::atomic<AskPython> the_ask_python{nullptr};
struct sigaction the_handler_before;
std::atomic<int> the_interrupts{0};
std::atomic<int> the_handled_interrupts{0};

void note_and_go_on(int signal, siginfo_t* info, void* context) {
  ++the_interrupts;
  if (the_handler_before.sa_flags & SA_SIGINFO) {
    the_handler_before.sa_sigaction(signal, info, context);
  } else {
    the_handler_before.sa_handler(signal);
  }
}

bool is_ours(const struct sigaction& handler) {
  return (handler.sa_flags & SA_SIGINFO) && handler.sa_sigaction == &note_and_go_on;
}

bool threads_compute() {
  int busy = 0;
  for (int i = 0; i < kBusyLooks; ++i) {
    std::this_thread::sleep_for(kBetweenBusyLooks);
    if (any_other_thread_is_busy()) ++busy;
  }
  return busy > kBusyShare * kBusyLooks;
}

}  // namespace

void set_ask_python(AskPython function) { the_ask_python = function; }

ProgramState look_at_program(int watchdog) {
  ProgramState state;
  const AskPython ask_python = the_ask_python;
  if (!ask_python) return state;
  const int interrupts = the_interrupts;
  const bool interrupted = interrupts != the_handled_interrupts.exchange(interrupts);
  const auto threads = threads_that_may_go_on({watchdog, thread_id()});
  // While the main thread runs, it makes calls, and raises KeyboardInterrupt by itself.
  const bool main_waits = std::find(threads.begin(), threads.end(), getpid()) == threads.end();
  if (main_waits) {
    std::array<char, kLongestPlace> place{};
    const int answer = ask_python(threads.data(), static_cast<int>(threads.size()), interrupted,
                                  place.data(), static_cast<int>(place.size()));
    state.stands_still = answer & kStandsStill;
    state.is_interrupted = answer & kIsInterrupted;
    state.place = place.data();
  }
  state.is_busy = !state.stands_still && threads_compute();
  return state;
}

void note_interrupts(bool wanted) {
  struct sigaction now{};
  if (sigaction(SIGINT, nullptr, &now) != 0 || is_ours(now) == wanted) return;
  if (!wanted) {
    sigaction(SIGINT, &the_handler_before, nullptr);
    return;
  }
  const bool is_function =
      (now.sa_flags & SA_SIGINFO) || (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN);
  if (!is_function) return;
  the_handler_before = now;
  struct sigaction ours = now;
  ours.sa_flags |= SA_SIGINFO;
  ours.sa_sigaction = &note_and_go_on;
  sigaction(SIGINT, &ours, nullptr);
}

}  // namespace gluon_syncbn

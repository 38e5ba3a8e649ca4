#include "common/program.h"

#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

namespace gluon_syncbn {
namespace {

constexpr int kLooks = 20;
constexpr int kMostBusyLooks = 4;  // some threads only look for work now and then
constexpr std::chrono::milliseconds kBetweenLooks{50};
constexpr std::size_t kLongestPlace = 1000;
constexpr const char* kThreads = "/proc/self/task/";

std::atomic<AskPython> the_ask_python{nullptr};
// The handlers that ours was put in front of, the latest last. A signal may come at any time, so a
// handler stays as it is for a while after another one was added.
std::array<struct sigaction, 8> the_handlers;
std::atomic<std::size_t> the_number_of_handlers{0};
bool is_installed = false;
std::atomic<int> the_calls{0};  // of our handler, one within the other
std::atomic<int> the_interrupts{0};
std::atomic<int> the_handled_interrupts{0};

int ask(std::string* place) {
  const AskPython ask_python = the_ask_python;
  std::array<char, kLongestPlace> text{};
  const int answer = ask_python ? ask_python(text.data(), static_cast<int>(text.size())) : 0;
  *place = text.data();
  return answer;
}

bool is_busy(const std::string& thread) {
  // Unlike std::istreambuf_iterator, operator<< does not throw if the thread ends before the read.
  std::ostringstream stat;
  stat << std::ifstream(kThreads + thread + "/stat").rdbuf();
  // The text is "number (name) state ...", in which the name may contain any character.
  const std::string text = stat.str();
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return false;
  const char state = text[name_end + 2];
  return state == 'R' || state == 'D';
}

/// `back` counts from the latest.
struct sigaction& handler_before(std::size_t back) {
  const std::size_t latest = the_number_of_handlers - 1;
  return the_handlers[(latest - std::min(back, latest)) % the_handlers.size()];
}

void note_and_go_on(int signal, siginfo_t* info, void* context) {
  // A handler that was put in front of this one may call it.
  const bool is_called_back = the_calls++ > 0;
  if (!is_called_back) ++the_interrupts;
  const struct sigaction& next = handler_before(is_called_back ? 1 : 0);
  if (next.sa_flags & SA_SIGINFO) {
    next.sa_sigaction(signal, info, context);
  } else {
    next.sa_handler(signal);
  }
  --the_calls;
}

}  // namespace

void set_ask_python(AskPython function) { the_ask_python = function; }

ProgramState look_at_program() {
  ProgramState state;
  const int interrupts = the_interrupts;
  const bool is_interrupted = interrupts != the_handled_interrupts.exchange(interrupts);
  const int answer = ask(&state.place);
  state.is_interrupted = is_interrupted && (answer & kRaisesInterrupts) != 0;
  if (state.is_interrupted) return state;
  state.is_idle = other_threads_are_idle();
  state.is_busy = !state.is_idle;
  state.stands_still =
      state.is_idle && (answer & kWaitsAlone) != 0 && (ask(&state.place) & kStillWaitsAlone) != 0;
  return state;
}

bool any_other_thread_is_busy() {
  const std::string own = std::to_string(syscall(SYS_gettid));
  // Not std::filesystem, which the systems of the wheel lack.
  const std::unique_ptr<DIR, int (*)(DIR*)> threads(opendir(kThreads), &closedir);
  if (!threads) return true;
  while (const dirent* thread = readdir(threads.get())) {
    const std::string number = thread->d_name;
    if (number.front() != '.' && number != own && is_busy(number)) return true;
  }
  return false;
}

bool other_threads_are_idle() {
  int busy = 0;
  for (int i = 0; i < kLooks; ++i) {
    std::this_thread::sleep_for(kBetweenLooks);
    if (any_other_thread_is_busy()) ++busy;
  }
  return busy <= kMostBusyLooks;
}

void note_interrupts(bool wanted) {
  struct sigaction now{};
  if (sigaction(SIGINT, nullptr, &now) != 0) return;
  struct sigaction ours = now;
  ours.sa_flags |= SA_SIGINFO;
  ours.sa_sigaction = &note_and_go_on;
  // sa_handler and sa_sigaction share their memory.
  if (now.sa_handler == ours.sa_handler) {
    if (!wanted) is_installed = sigaction(SIGINT, &handler_before(0), nullptr) != 0;
    return;
  }
  const bool is_function =
      (now.sa_flags & SA_SIGINFO) || (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN);
  if (!wanted || !is_function) return;
  if (!is_installed) the_handled_interrupts = the_interrupts.load();  // those of earlier waits
  the_handlers[the_number_of_handlers % the_handlers.size()] = now;
  ++the_number_of_handlers;
  is_installed = sigaction(SIGINT, &ours, nullptr) == 0;
}

}  // namespace gluon_syncbn

#include "common/watchdog.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "common/per_process.h"

namespace gluon_syncbn {
namespace {

constexpr std::chrono::milliseconds kBriefly{10};
constexpr Seconds kLookEvery{0.5};
constexpr Seconds kLookAfter{1};
constexpr Seconds kEndAfter{2};
constexpr Seconds kLongestGap{2};

// Outside the class, because a forked child gets a new Watchdog but keeps the timeout.
std::atomic<double> the_timeout{kDefaultTimeout};

void end_waits(const std::vector<std::shared_ptr<Waiting>>& all, const Ending& ending) {
  for (const auto& waiting : all) waiting->end_waits(ending);
}

}  // namespace

Watchdog& Watchdog::instance() { return PerProcess<Watchdog>::instance(); }

double Watchdog::timeout() const { return the_timeout.load(); }

void Watchdog::set_timeout(double seconds) {
  the_timeout = seconds;
  const std::lock_guard<std::mutex> lock(mutex_);
  wake_.notify_all();
}

std::optional<std::string> Watchdog::watch(const std::shared_ptr<Waiting>& waiting) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_retired_) return kRetired;
  if (!is_running_) {
    try {
      std::thread([this] { run(); }).detach();
    } catch (const std::system_error& error) {
      return std::string("no thread could be started to watch over the timeout: ") + error.what();
    }
    is_running_ = true;
  }
  waiting_[waiting.get()] = waiting;
  if (is_idle_) wake_.notify_all();
  return std::nullopt;
}

void Watchdog::unwatch(const Waiting* waiting) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.erase(waiting);
}

bool Watchdog::has_waits() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !waiting_.empty();
}

Seconds Watchdog::age_of(Clock::time_point since) {
  return Clock::now() - std::max(since, instance().resumed_.load());
}

Watchdog::EndsWhenIdle::EndsWhenIdle(Ending ending) {
  ending.least = kLookAfter;  // other_threads_are_idle() looks as long
  Watchdog& watchdog = instance();
  const std::lock_guard<std::mutex> lock(watchdog.mutex_);
  at_ = watchdog.when_idle_.insert(watchdog.when_idle_.end(), std::move(ending));
  watchdog.wake_.notify_all();
}

Watchdog::EndsWhenIdle::~EndsWhenIdle() {
  Watchdog& watchdog = instance();
  {
    const std::lock_guard<std::mutex> lock(watchdog.mutex_);
    watchdog.when_idle_.erase(at_);
  }
  // The caller may fork, and the child would find the mutex of a barrier locked.
  const std::lock_guard<std::mutex> looks_after(watchdog.looks_after_);
}

void Watchdog::retire() {
  std::unique_lock<std::mutex> lock(mutex_);
  is_retired_ = true;
  const All all = this->all();
  lock.unlock();
  end_waits(all, {kRetired, Missing::kAnything});
  // Python is about to end, and must not be asked any more.
  set_ask_python(nullptr);
  while (is_looking_ || pauses_ > 0) std::this_thread::sleep_for(kBriefly);
}

Watchdog::All Watchdog::all() const {
  All all;
  for (const auto& [_, entry] : waiting_) {
    if (auto waiting = entry.lock()) all.push_back(std::move(waiting));
  }
  return all;
}

void Watchdog::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    sleep(&lock);
    const bool looks_for_idleness = !when_idle_.empty();
    lock.unlock();
    const bool is_idle = looks_for_idleness && other_threads_are_idle();
    if (pauses_ == 0) look_after_all(is_idle);
    lock.lock();
  }
}

/// Sleeps until there are waits, or for a moment if there are some.
void Watchdog::sleep(std::unique_lock<std::mutex>* lock) {
  is_idle_ = waiting_.empty();
  if (is_idle_) {
    program_ = {};
    note_interrupts(false);
    return wake_.wait(*lock);
  }
  // With a fixed pause, watch() need not wake this thread for each round's own deadline.
  Seconds pause = kLookEvery;
  if (timeout() > 0) pause = std::min(pause, Seconds(std::max(timeout() / 20, 0.01)));
  const auto before = Clock::now();
  wake_.wait_for(*lock, pause);
  // The process was suspended, and could make no calls.
  if (Clock::now() - before > kLongestGap) resumed_ = Clock::now();
}

void Watchdog::look_after_all(bool is_idle) {
  const std::lock_guard<std::mutex> looks_after(looks_after_);
  All all;
  std::list<Ending> when_idle;
  ProgramState program;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    all = this->all();
    when_idle = when_idle_;
    program = program_;
    program_.stands_still = program_.is_interrupted = program_.is_idle = false;
  }
  if (is_idle) {
    for (const Ending& ending : when_idle) end_waits(all, ending);
  }
  if (program.is_interrupted) {
    end_waits(all, {"interrupted by Ctrl-C at " + program.place, Missing::kAnything,
                    Absent::kHaveLeftItOut, kLookAfter});
  }
  if (program.stands_still) {
    end_waits(all, {"the only thread of the program waits in MXNet at " + program.place +
                        ", and so cannot make the missing calls",
                    Missing::kCallsOnCpus, Absent::kMayCome, kEndAfter, true});
  }
  const Seconds limit(timeout());
  const auto remind = [&](Missing missing, Seconds least) {
    for (const auto& waiting : all) waiting->remind(missing, least, limit, program);
  };
  if (program.is_idle) remind(Missing::kCalls, kEndAfter);
  if (limit.count() > 0) {
    remind(Missing::kAnything, remind_after(limit));
    end_waits(all, {"", Missing::kAnything, Absent::kHaveLeftItOut, limit});
  }
  const bool is_late = std::any_of(
      all.begin(), all.end(), [](const auto& waiting) { return waiting->is_late(kLookAfter); });
  note_interrupts(is_late);
  if (!is_late) {
    const std::lock_guard<std::mutex> lock(mutex_);
    program_ = {};                 // says nothing of later waits
  } else if (when_idle.empty()) {  // a thread that forks holds Python's lock, and waits
    look_at_program();
  }
}

void Watchdog::look_at_program() {
  if (is_looking_.exchange(true)) return;
  try {
    // Another thread, because a thread that forks may have Python's lock and wait for this one.
    std::thread([this] {
      const ProgramState program = gluon_syncbn::look_at_program();
      const std::lock_guard<std::mutex> lock(mutex_);
      program_ = program;
      is_looking_ = false;
      wake_.notify_all();
    }).detach();
  } catch (const std::system_error&) {
    is_looking_ = false;
  }
}

Seconds Watchdog::remind_after(Seconds timeout) {
  return std::min(timeout * kReminderShare, Seconds(kLatestReminder));
}

}  // namespace gluon_syncbn

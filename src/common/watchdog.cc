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

constexpr std::chrono::milliseconds kObserveEvery{10};
constexpr Waiting::Seconds kLookEvery{0.5};
constexpr Waiting::Seconds kLookAfter{2};
constexpr Waiting::Seconds kNoteInterruptsAfter{1};

// Outside the class, because a forked child gets a new Watchdog but keeps the timeout.
std::atomic<double> the_timeout{kDefaultTimeout};

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
  if (retired_) return kRetired;
  if (!running_) {
    try {
      std::thread([this] { run(); }).detach();
    } catch (const std::system_error& error) {
      return std::string("no thread could be started to watch over the timeout: ") + error.what();
    }
    running_ = true;
  }
  entries_[waiting.get()] = {waiting, Clock::now()};
  if (interruption_) other_threads_.forget();
  if (idle_) wake_.notify_all();
  return std::nullopt;
}

void Watchdog::unwatch(const Waiting* waiting) {
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.erase(waiting);
}

void Watchdog::interrupt_when_idle(std::optional<Interruption> interruption) {
  const std::lock_guard<std::mutex> lock(mutex_);
  interruption_ = std::move(interruption);
  is_interrupted_by_user_ = false;
  other_threads_.forget();
  wake_.notify_all();
}

void Watchdog::retire() {
  std::vector<std::shared_ptr<Waiting>> all;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    retired_ = true;
    all = all_waiting();
  }
  for (const auto& waiting : all) waiting->fail(kRetired);
  // Python is about to end, and must not be asked any more.
  set_ask_python(nullptr);
  while (is_looking_ || pauses_ > 0) std::this_thread::sleep_for(kObserveEvery);
}

/// What has waited for at least this time.
std::vector<std::shared_ptr<Waiting>> Watchdog::all_waiting(Waiting::Seconds least) const {
  const auto until = Clock::now();
  std::vector<std::shared_ptr<Waiting>> all;
  for (const auto& [_, entry] : entries_) {
    if (until - entry.since < least) continue;
    if (auto waiting = entry.waiting.lock()) all.push_back(std::move(waiting));
  }
  return all;
}

void Watchdog::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    idle_ = entries_.empty();
    if (idle_) {
      note_interrupts(false);
      wake_.wait(lock);
      continue;
    }
    if (pauses_ > 0) {
      wake_.wait_for(lock, kObserveEvery);
      for (auto& [_, entry] : entries_) entry.since = Clock::now();
      continue;
    }
    if (interruption_) {
      wake_.wait_for(lock, kObserveEvery);
      observe(lock);
    } else {
      // With a fixed pause, watch() need not wake this thread for each round's own deadline.
      const Waiting::Seconds pause(std::max(timeout() / 20, 0.01));
      wake_.wait_for(lock, timeout() > 0 ? std::min(pause, kLookEvery) : kLookEvery);
    }
    if (pauses_ > 0) continue;
    look(lock);
    // set_timeout() may have been called in the meantime.
    const Waiting::Seconds limit(timeout());
    if (limit.count() > 0) inspect(lock, limit);
  }
}

void Watchdog::observe(std::unique_lock<std::mutex>& lock) {
  if (!interruption_ || !other_threads_.observe_idle()) return;
  const Interruption interruption = *interruption_;
  auto all = all_waiting();
  lock.unlock();
  for (const auto& waiting : all) waiting->interrupt(interruption);
  all.clear();
  lock.lock();
  forget_user();
}

void Watchdog::forget_user() {
  if (std::exchange(is_interrupted_by_user_, false)) interruption_.reset();
}

void Watchdog::look(std::unique_lock<std::mutex>& lock) {
  const auto calls_are_missing = [&](Waiting::Seconds since) {
    auto late = all_waiting(since);
    lock.unlock();
    const bool any = std::any_of(late.begin(), late.end(),
                                 [](const auto& waiting) { return waiting->waits_for_calls(); });
    late.clear();
    lock.lock();
    return any;
  };
  note_interrupts(calls_are_missing(kNoteInterruptsAfter));
  if (!calls_are_missing(kLookAfter)) {
    program_ = {};
    forget_user();
    return;
  }
  if (interruption_ || retired_ || is_looking_.exchange(true)) return;
  try {
    // Another thread, because a thread that forks holds Python's lock and waits for this one.
    std::thread([this, watchdog = thread_id()] {
      act_on(look_at_program(watchdog));
      is_looking_ = false;
    }).detach();
  } catch (const std::system_error&) {
    is_looking_ = false;
  }
}

void Watchdog::act_on(const ProgramState& program) {
  std::unique_lock<std::mutex> lock(mutex_);
  program_ = program;
  if (program.stands_still) {
    const Interruption interruption{
        "no thread of the program can make the missing calls" +
            (program.place.empty() ? "" : "; the program waits in MXNet at " + program.place),
        Interruption::kStandsStill};
    const auto all = all_waiting(kLookAfter);
    lock.unlock();
    for (const auto& waiting : all) waiting->interrupt(interruption);
  } else if (program.is_interrupted && !interruption_) {
    // Operations that run may still make the missing calls.
    interruption_ =
        Interruption{"interrupted by Ctrl-C at " + program.place, Interruption::kHasBrokenOff};
    is_interrupted_by_user_ = true;
    other_threads_.forget();
    wake_.notify_all();
  }
}

Waiting::Seconds Watchdog::remind_after(Waiting::Seconds timeout) {
  return std::min(timeout * kReminderShare, Waiting::Seconds(kLatestReminder));
}

void Watchdog::inspect(std::unique_lock<std::mutex>& lock, Waiting::Seconds limit) {
  using Late = std::vector<std::pair<std::shared_ptr<Waiting>, Waiting::Seconds>>;
  Late early;
  Late expired;
  const auto now = Clock::now();
  for (auto& [_, entry] : entries_) {
    const Waiting::Seconds waited = now - entry.since;
    if (waited < limit && (entry.reminded || waited < remind_after(limit))) continue;
    auto waiting = entry.waiting.lock();
    if (!waiting) continue;
    entry.reminded = true;
    (waited < limit ? early : expired).emplace_back(std::move(waiting), waited);
  }
  const ProgramState program = program_;
  lock.unlock();
  for (const auto& [waiting, waited] : early) waiting->remind(waited, limit, program);
  for (const auto& [waiting, waited] : expired) waiting->give_up(waited);
  // Unlocked, because the destructor of a Waiting calls unwatch(), which locks the mutex.
  early.clear();
  expired.clear();
  lock.lock();
}

}  // namespace gluon_syncbn

#include "core/watchdog.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

namespace gluon_syncbn {

Watchdog& Watchdog::instance() {
  // Never destroyed: its thread may outlive static destruction at process exit.
  static Watchdog& watchdog = *new Watchdog();
  return watchdog;
}

void Watchdog::set_timeout(double seconds) {
  timeout_ = seconds;
  const std::lock_guard<std::mutex> lock(mutex_);
  wake_.notify_all();
}

void Watchdog::watch(const std::shared_ptr<Waiting>& waiting) {
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_[waiting.get()] = {waiting, Clock::now()};
  if (!running_) {
    running_ = true;
    std::thread([this] { run(); }).detach();
  } else if (idle_) {
    wake_.notify_all();
  }
}

void Watchdog::unwatch(const Waiting* waiting) {
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.erase(waiting);
}

void Watchdog::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (entries_.empty() || timeout_ <= 0) {
      idle_ = true;
      wake_.wait(lock);
      idle_ = false;
    }
    const std::chrono::duration<double> limit(timeout_.load());
    const auto pause = std::chrono::duration<double>(std::clamp(limit.count() / 10, 0.01, 1.0));
    // Sleeping a fixed pause instead of to the next deadline spares a wake-up per round.
    wake_.wait_for(lock, pause);
    if (timeout_ <= 0) continue;

    std::vector<std::pair<std::shared_ptr<Waiting>, std::chrono::duration<double>>> expired;
    const auto now = Clock::now();
    for (const auto& [_, entry] : entries_) {
      const std::chrono::duration<double> waited = now - entry.since;
      if (waited < limit) continue;
      if (auto waiting = entry.waiting.lock()) expired.emplace_back(std::move(waiting), waited);
    }
    lock.unlock();
    for (const auto& [waiting, waited] : expired) waiting->give_up(waited);
    expired.clear();
    lock.lock();
  }
}

}  // namespace gluon_syncbn

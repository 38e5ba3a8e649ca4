#ifndef GLUON_SYNCBN_CORE_WATCHDOG_H_
#define GLUON_SYNCBN_CORE_WATCHDOG_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace gluon_syncbn {

/// Something that waits for devices and can give up.
class Waiting {
 public:
  virtual ~Waiting() = default;
  virtual void give_up(std::chrono::duration<double> waited) = 0;
};

/// Makes whatever has waited longer than the timeout give up. One thread serves the process; it
/// starts with the first thing watched.
class Watchdog {
 public:
  static Watchdog& instance();

  /// Seconds; 0 waits for ever.
  void set_timeout(double seconds);
  double timeout() const { return timeout_.load(); }

  void watch(const std::shared_ptr<Waiting>& waiting);
  void unwatch(const Waiting* waiting);

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::weak_ptr<Waiting> waiting;
    Clock::time_point since;
  };

  Watchdog() = default;
  void run();

  std::atomic<double> timeout_{300.0};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool running_ = false;
  bool idle_ = false;
  std::unordered_map<const Waiting*, Entry> entries_;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_CORE_WATCHDOG_H_

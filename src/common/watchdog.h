#ifndef GLUON_SYNCBN_COMMON_WATCHDOG_H_
#define GLUON_SYNCBN_COMMON_WATCHDOG_H_

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/other_threads.h"

namespace gluon_syncbn {

/// Why nothing may wait any longer, and whether the calls that are missing may still be made.
struct Interruption {
  std::string reason;
  bool calls_may_come;
};

/// Something that waits for devices and can give up.
class Waiting {
 public:
  using Seconds = std::chrono::duration<double>;

  virtual ~Waiting() = default;
  /// Called once, after this share of the time after which give_up() is called.
  virtual double warn_after() const { return 0.1; }
  virtual void warn(Seconds waited, Seconds limit) = 0;
  virtual void give_up(Seconds waited) = 0;
  virtual void fail(const std::string& error) = 0;
  /// Without effect where it does not wait for calls in this process.
  virtual void interrupt(const Interruption& /*interruption*/) {}
};

/// Makes whatever has waited longer than the timeout give up. One thread serves the process; it
/// starts with the first thing watched.
class Watchdog {
 public:
  static Watchdog& instance();

  /// Seconds; 0 waits forever.
  void set_timeout(double seconds);
  double timeout() const;

  /// Nothing, or why `waiting` is not watched and should fail: the process ends, or has no thread
  /// to spare for the watchdog.
  std::optional<std::string> watch(const std::shared_ptr<Waiting>& waiting);
  void unwatch(const Waiting* waiting);

  /// From now on, whatever waits is interrupted once the other threads of the process have had
  /// nothing to do for a second: the calling thread, which waits for them, cannot make the calls
  /// that are missing. std::nullopt ends this.
  void interrupt_when_idle(std::optional<Interruption> interruption);

  /// At the end of a process, which would otherwise wait for devices that nobody calls any more:
  /// whatever waits fails, and so does whatever comes later.
  void retire();
  static constexpr const char* kRetired = "the process ends before all devices have come";

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::weak_ptr<Waiting> waiting;
    Clock::time_point since;
    bool warned = false;
  };

  void run();
  std::vector<std::shared_ptr<Waiting>> all_waiting() const;
  void observe(std::unique_lock<std::mutex>& lock);
  void inspect(std::unique_lock<std::mutex>& lock, Waiting::Seconds limit);

  std::mutex mutex_;
  std::condition_variable wake_;
  bool running_ = false;
  bool idle_ = false;
  bool retired_ = false;
  std::optional<Interruption> interruption_;
  OtherThreads other_threads_;
  std::unordered_map<const Waiting*, Entry> entries_;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_COMMON_WATCHDOG_H_

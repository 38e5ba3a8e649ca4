#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/program.h"

namespace gluon_syncbn {

inline constexpr double kDefaultTimeout = 300;  // seconds
inline constexpr double kReminderShare = 0.1;   // of the timeout
inline constexpr double kLatestReminder = 10;   // seconds

using Seconds = std::chrono::duration<double>;

/// What is missing: calls in this process, or anything, such as calls in other processes.
enum class Missing { kCallsOnCpus, kCalls, kAnything };

/// Whether devices that have not come to a failed round may still do so.
enum class Absent { kMayCome, kHaveLeftItOut };

/// Which waits end, and why.
struct Ending {
  std::string reason;  ///< "": the timeout
  Missing missing;
  Absent absent = Absent::kMayCome;
  Seconds least{0};            ///< only waits that are at least so old
  bool names_devices = false;  ///< in the error
};

/// What has waits for devices or processes: a barrier. The watchdog reminds of them and ends them.
class Waiting {
 public:
  virtual ~Waiting() = default;
  /// Whether there is a wait that is at least so old.
  virtual bool is_late(Seconds least) = 0;
  /// Warns of each wait that is at least so old, once.
  virtual void remind(Missing missing, Seconds least, Seconds limit,
                      const ProgramState& program) = 0;
  virtual void end_waits(const Ending& ending) = 0;
};

/// Ends waits at the timeout, and earlier if the program can no longer make the missing calls, if
/// the user presses Ctrl-C, at a fork and at the end of the process. One thread serves the process;
/// the first watch() starts it.
class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;

  static Watchdog& instance();

  /// In seconds; 0 means that there is no limit.
  void set_timeout(double seconds);
  double timeout() const;

  /// From now on looks after `waiting`, which has waits. Returns the reason if it cannot: the
  /// process ends, or could not start the watchdog's thread. Then the wait should end.
  std::optional<std::string> watch(const std::shared_ptr<Waiting>& waiting);
  void unwatch(const Waiting* waiting);
  bool has_waits();

  /// While it lives, waits end that are older than a second in which the other threads were idle.
  /// The calling thread is about to wait for all operations, so it cannot make the missing calls.
  class EndsWhenIdle {
   public:
    explicit EndsWhenIdle(Ending ending);
    ~EndsWhenIdle();
    EndsWhenIdle(const EndsWhenIdle&) = delete;
    EndsWhenIdle& operator=(const EndsWhenIdle&) = delete;

   private:
    std::list<Ending>::iterator at_;
  };

  /// Stops the clocks of all waits while it lives. They then begin anew. For a kernel that a device
  /// compiles, while its peers wait.
  class Pause {
   public:
    Pause() { ++instance().pauses_; }
    ~Pause() {
      instance().resumed_ = Clock::now();
      --instance().pauses_;
    }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
  };
  /// How long a wait has lasted by its clock.
  static Seconds age_of(Clock::time_point since);

  /// Ends all waits, now and from now on. Called at the end of a process, which would otherwise
  /// wait for devices that the program no longer calls.
  void retire();
  /// A share of the timeout, at most 10 s.
  static Seconds remind_after(Seconds timeout);
  static constexpr const char* kRetired = "the process ends before all devices have come";

 private:
  using All = std::vector<std::shared_ptr<Waiting>>;

  void run();
  void sleep(std::unique_lock<std::mutex>* lock);
  All all() const;
  void look_after_all(bool is_idle);
  void look_at_program();

  std::mutex mutex_;
  std::mutex looks_after_;  ///< locked in look_after_all(), before the other
  std::condition_variable wake_;
  bool is_running_ = false;
  bool is_idle_ = false;
  bool is_retired_ = false;
  std::list<Ending> when_idle_;
  std::atomic<bool> is_looking_{false};
  std::atomic<int> pauses_{0};
  std::atomic<Clock::time_point> resumed_{Clock::time_point::min()};
  ProgramState program_;  ///< as of the last look, but for what has been acted on
  std::unordered_map<const Waiting*, std::weak_ptr<Waiting>> waiting_;
};

}  // namespace gluon_syncbn

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/other_threads.h"
#include "common/program.h"

namespace gluon_syncbn {

inline constexpr double kDefaultTimeout = 300;  // seconds
inline constexpr double kReminderShare = 0.1;   // of the timeout
inline constexpr double kLatestReminder = 10;   // seconds

/// Says why the watchdog ends waits before the timeout, for Waiting::interrupt().
struct Interruption {
  enum Program {
    kMayGoOn,       ///< it may still make the missing calls
    kHasBrokenOff,  ///< its next calls are those of the next step
    kStandsStill    ///< its next calls come after the error, in this step or in the next
  };
  std::string reason;
  Program program;
};

/// An object that waits for devices or processes. The watchdog can end the wait.
class Waiting {
 public:
  using Seconds = std::chrono::duration<double>;

  virtual ~Waiting() = default;
  /// Called at most once for each watch(), after Watchdog::remind_after().
  virtual void remind(Seconds waited, Seconds limit, const ProgramState& program) = 0;
  /// Called after the timeout, again and again until watch() or unwatch().
  virtual void give_up(Seconds waited) = 0;
  virtual void fail(const std::string& error) = 0;
  /// Has no effect on a Waiting that waits for no calls in this process.
  virtual void interrupt(const Interruption& /*interruption*/) {}
  /// Whether calls in this process are missing.
  virtual bool waits_for_calls() { return false; }
};

/// Makes each Waiting give up at the timeout. One thread serves the process; the first watch()
/// starts it. After 2 s it looks whether the program can still make the missing calls, and ends the
/// waits if it cannot, or if the user presses Ctrl-C.
class Watchdog {
 public:
  static Watchdog& instance();

  /// In seconds; 0 means that there is no limit.
  void set_timeout(double seconds);
  double timeout() const;

  /// Starts the clock of `waiting`, or starts it again. Returns the reason if it cannot: the
  /// process ends, or could not start the watchdog's thread. Then `waiting` should fail.
  std::optional<std::string> watch(const std::shared_ptr<Waiting>& waiting);
  void unwatch(const Waiting* waiting);

  /// From now on, interrupts every Waiting once the other threads of the process have been idle for
  /// a second. The calling thread is about to wait for all operations, so it cannot make the
  /// missing calls. std::nullopt ends the interruptions.
  void interrupt_when_idle(std::optional<Interruption> interruption);

  /// Stops the clocks of all waits while it lives. They then begin anew. For a kernel that a device
  /// compiles, while its peers wait.
  class Pause {
   public:
    Pause() { ++instance().pauses_; }
    ~Pause() { --instance().pauses_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
  };

  /// Fails every Waiting, now and from now on. Called at the end of a process, which would
  /// otherwise wait for devices that the program no longer calls.
  void retire();
  /// A share of the timeout, at most 10 s.
  static Waiting::Seconds remind_after(Waiting::Seconds timeout);
  static constexpr const char* kRetired = "the process ends before all devices have come";

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::weak_ptr<Waiting> waiting;
    Clock::time_point since;
    bool reminded = false;
  };

  void run();
  std::vector<std::shared_ptr<Waiting>> all_waiting(Waiting::Seconds least = {}) const;
  void look(std::unique_lock<std::mutex>& lock);
  void act_on(const ProgramState& program);
  void forget_user();
  void observe(std::unique_lock<std::mutex>& lock);
  void inspect(std::unique_lock<std::mutex>& lock, Waiting::Seconds limit);

  std::mutex mutex_;
  std::condition_variable wake_;
  bool running_ = false;
  bool idle_ = false;
  bool retired_ = false;
  std::optional<Interruption> interruption_;
  bool is_interrupted_by_user_ = false;
  std::atomic<bool> is_looking_{false};
  std::atomic<int> pauses_{0};
  ProgramState program_;  ///< as of the last look
  OtherThreads other_threads_;
  std::unordered_map<const Waiting*, Entry> entries_;
};

}  // namespace gluon_syncbn

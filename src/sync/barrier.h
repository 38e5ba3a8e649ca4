#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "common/device.h"
#include "common/signature.h"
#include "common/watchdog.h"
#include "distributed/process_rounds.h"
#include "sync/calls.h"

namespace gluon_syncbn {

struct Wait;

/// The devices that synchronize one layer, and a table of the passes that belong together.
///
///     round 7   forward      cpu(0): pass, cpu(1): pass        kComing ... kOver
///               backward 0   cpu(1): pass                      kComing
///               backward 1   (retain_graph)
///
/// Each device leaves its pass in the meeting of its round (see Calls), and no thread waits. The
/// last device finishes the passes of all; if there are other processes, their answer does.
///
/// A meeting ends once: all have met, or end() gives it an error. Passes that still come get the
/// error.
///
/// One mutex guards the table. What follows from a change of the table (passes that complete,
/// messages to other processes) happens when the mutex is free again (Change).
class Barrier : public Waiting, public std::enable_shared_from_this<Barrier> {
 public:
  struct Options {
    std::string key;                           ///< of a named barrier; see named()
    std::string option = "num_devices";        ///< the user's name for `num_devices`
    std::shared_ptr<ProcessRounds> processes;  ///< to the other processes, if there are any
    std::vector<int> device_ids;  ///< of the devices that should come; empty: not known
  };

  /// The way of a meeting to its end. If there are other processes, a meeting that fails goes this
  /// way too, because they wait for its message.
  enum class State {
    kComing,   ///< devices of this process are missing
    kQueued,   ///< its message waits for its turn
    kSumming,  ///< the passes sum, and merge into its message: none may fail before
    kSent,     ///< the answer of the other processes is missing
    kOver
  };
  /// The passes of all devices that belong together.
  struct Meeting {
    explicit Meeting(Direction direction_in) : direction(direction_in) {}

    const Direction direction;
    State state = State::kComing;
    std::optional<std::string> error;
    std::map<Device, PassPtr> passes;  ///< that wait; in this order they are merged
    std::size_t places = 0;            ///< devices that have come or are about to
    Watchdog::Clock::time_point since;
    bool was_reminded = false;
  };
  /// One training forward of the layer on all of its devices, and the backward passes that follow
  /// from it. Operators keep the round of their last forward.
  struct Round {
    const Calls::Key key;
    const std::uint64_t number;                       ///< for messages
    const std::shared_ptr<ProcessRounds::Seat> seat;  ///< null without other processes
    const std::shared_ptr<Meeting> forward = std::make_shared<Meeting>(Direction::kForward);
    std::optional<std::pair<Device, Signature>> signature = {};  ///< of the first device
    std::optional<std::string> error = {};  ///< of a device, for all passes that still come
    std::map<Device, std::size_t> backward_calls = {};
    std::map<std::size_t, std::shared_ptr<Meeting>> backwards = {};  ///< with places left
  };
  /// The place of a device's next pass. Only the barrier looks into it.
  struct Place {
    std::shared_ptr<Round> round;
    std::shared_ptr<Meeting> meeting;
  };

  Barrier(std::string layer, std::size_t num_devices, Options options)
      : layer_(std::move(layer)),
        num_devices_(num_devices),
        options_(std::move(options)),
        calls_(num_devices) {}
  Barrier(std::string layer, std::size_t num_devices)
      : Barrier(std::move(layer), num_devices, Options()) {}
  ~Barrier() override;

  /// Returns the barrier for this key, number of devices and process group. Callers share it for as
  /// long as one of them holds it.
  static std::shared_ptr<Barrier> named(const std::string& layer, std::size_t num_devices,
                                        const Options& options);
  /// The named barriers that a caller holds.
  static std::vector<std::shared_ptr<Barrier>> all_named();

  // The way of a call: announce() or nothing; join() and agree(), or next_backward(); then
  // arrive(), fail() or fail_round().

  /// As in Calls.
  Calls::Epoch announce(const Device& device);
  void saw_inference(const Device& device);
  /// Returns the place of the next training forward of `device`. Throws Error if there are more
  /// devices than `num_devices`, or if the round repeats an error.
  Place join(const Device& device, Calls::Epoch epoch = Calls::kNow);
  /// Fails the round if `device` does not agree with the devices before it, and throws Error.
  void agree(const std::shared_ptr<Round>& round, const Device& device, const Signature& signature);
  /// Returns the place of the next backward pass of `device` through this round. The first call of
  /// a device meets the first calls of its peers; the second call (retain_graph) meets the second
  /// calls.
  Place next_backward(const std::shared_ptr<Round>& round, const Device& device);
  /// `pass` is finished once or fails once: now, later by the last device to arrive, or by an
  /// error. If the device has come before, that is an internal error of both passes.
  void arrive(const Place& place, const Device& device, const PassPtr& pass);
  /// Every pass that waits there, and every pass that still comes, fails with `error`, which
  /// follows the name of the pass. Without effect once all have met.
  void fail(const Place& place, const std::string& error);
  /// `device` cannot go on in this round. Its peers fail now, and others when they come. Without
  /// effect if forward has failed before.
  void fail_round(const std::shared_ptr<Round>& round, const Device& device,
                  const std::string& reason);

  const std::string& layer() const { return layer_; }
  std::size_t num_devices() const { return num_devices_; }
  const Options& options() const { return options_; }

  // For the watchdog.
  bool is_late(Seconds least) override;
  void remind(Missing missing, Seconds least, Seconds limit, const ProgramState& program) override;
  void end_waits(const Ending& ending) override;

 private:
  /// Holds the mutex. When it is free again, does what has to follow.
  class Change {
   public:
    explicit Change(const Barrier* barrier) : lock_(barrier->mutex_) {}
    ~Change() {
      lock_.unlock();
      for (const auto& act : acts_) act();  // the last owner of the barrier may go
    }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

    void then(std::function<void()> act) { acts_.push_back(std::move(act)); }

   private:
    std::unique_lock<std::mutex> lock_;
    std::vector<std::function<void()>> acts_;
  };

  // All of these run under the mutex.
  std::shared_ptr<Round> enter(const Calls::Key& key, const std::string& repeated, Change* change);
  void wait(const Place& place, Change* change);
  void stop_waiting(const Place& place);
  void meet(const Place& place, const std::optional<PartialStatistics>& merged, Change* change);
  void end(const Place& place, const std::string& error, Absent absent, Change* change);
  void fail(const Place& place, const std::string& reason, Change* change);
  void failed(const Round& round, const std::string& error, Absent absent);
  static void fail_passes(Meeting* meeting, Change* change);
  void fail_round(const std::shared_ptr<Round>& round, const std::string& error, Change* change);
  void queue(const Place& place, Change* change);
  std::string name_of(const Place& place) const;
  Wait wait_at(const Place& place) const;
  template <class Visit>
  void for_each_wait(Missing missing, Seconds least, const Visit& visit);

  // With other processes, after queue(). These take the mutex.
  void sum(const Place& place, const ProcessRounds::Send& send);
  void summed(const Place& place, const Passes& passes, std::string error,
              const ProcessRounds::Send& send);
  void answered(const Place& place, const PartialStatistics& merged, const std::string& error);

  const std::string layer_;
  const std::size_t num_devices_;
  const Options options_;
  mutable std::mutex mutex_;
  Calls calls_;
  std::uint64_t rounds_ = 0;
  std::map<Calls::Key, std::shared_ptr<Round>> open_;  // rounds that not all devices have joined
  std::map<const Meeting*, Place> waiting_;            // with passes, and not over
};

/// The error of the peers of a device that has failed.
std::string failed_on(const Device& device, const std::string& reason);

}  // namespace gluon_syncbn

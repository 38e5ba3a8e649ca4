#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "common/device.h"
#include "common/watchdog.h"
#include "distributed/process_rounds.h"
#include "sync/wait_messages.h"

namespace gluon_syncbn {

class SyncGroup;

/// The meeting of all devices in one forward or backward pass of a round. Each device leaves its
/// own pass, and no thread waits. The last device to arrive finishes the passes of all. If there
/// are other processes, it sends them partial statistics instead, and their answer finishes.
class Meeting : public Waiting, public Exchange, public std::enable_shared_from_this<Meeting> {
 public:
  /// `processes` is empty if this process is alone.
  Meeting(const std::shared_ptr<SyncGroup>& group, std::uint64_t round, Direction direction,
          std::shared_ptr<ProcessRound> processes = nullptr);
  ~Meeting() override;

  /// "SyncBatchNorm 'bn0' round 3 forward", for messages.
  const std::string& name() const { return name_; }

  /// `pass` is finished once or fails once: now, later by the last device to arrive, or by fail().
  /// If the device has come before, that is an internal error of both passes.
  void arrive(const Device& device, const PassPtr& pass);

  /// Whether all devices of all processes came.
  bool has_met();

  /// Every pass that waits, and every pass that still comes, fails with `error`, which follows the
  /// name of the meeting. Without effect once all have met.
  void fail(const std::string& error) override;

  /// Fails the meeting, but only while it still waits for devices of this process.
  void interrupt(const Interruption& interruption) override;
  bool waits_for_calls() override;

  /// Prints which devices are missing.
  void remind(Seconds waited, Seconds limit, const ProgramState& program) override;
  void give_up(Seconds waited) override;

 private:
  /// The way of a meeting to its end. Without other processes, kDone follows kComing. A meeting
  /// that fails goes this way too, up to kSent, because the other processes wait for its message.
  enum class State {
    kComing,   ///< devices of this process are missing
    kQueued,   ///< its message waits for its turn
    kMerging,  ///< the passes sum and merge into its message
    kSent,     ///< the answer of the other processes is missing
    kDone      ///< all devices of all processes have met
  };

  void merge() override;
  void answered(const PartialStatistics& merged, const std::string& error) override;
  void send(const PartialStatistics& merged, const std::string& error);
  void finish(std::unique_lock<std::mutex> lock, const std::optional<PartialStatistics>& merged);
  Wait current_wait();
  void count() const;
  Passes passes() const;
  Passes take_passes();
  /// In which states an error ends the meeting.
  enum class EndsIf { kNotDone, kComing, kAllHaveCome };
  template <class BeforePassesFail>
  void end_with(const std::string& error, EndsIf ends_if,
                const BeforePassesFail& before_passes_fail);

  // Weak, because open rounds of the group own meetings. Operators keep the group while a pass
  // waits.
  const std::weak_ptr<SyncGroup> group_;
  const std::size_t num_devices_;
  const std::uint64_t round_;
  const Direction direction_;
  const std::string name_;
  const std::shared_ptr<ProcessRound> processes_;
  std::mutex mutex_;
  State state_ = State::kComing;
  std::optional<std::string> error_;
  std::map<Device, PassPtr> passes_;  // in this order they are merged
};

/// Begins to count the rounds in which all devices met, for programs that ask at their end.
void count_rounds();
/// A line per layer and its devices: layer, number of rounds, devices, with tabs in between.
std::string counted_rounds();

}  // namespace gluon_syncbn

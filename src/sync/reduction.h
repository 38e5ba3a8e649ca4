#ifndef GLUON_SYNCBN_SYNC_REDUCTION_H_
#define GLUON_SYNCBN_SYNC_REDUCTION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/device.h"
#include "common/watchdog.h"
#include "distributed/round_link.h"
#include "norm/backend.h"
#include "sync/membership.h"

namespace gluon_syncbn {

/// One forward or backward pass of all devices: each leaves its own, and nobody waits. The last
/// device to arrive finishes them all. If there are other processes, it first exchanges partial
/// statistics with them.
class Reduction : public Waiting, public std::enable_shared_from_this<Reduction> {
 public:
  /// The pass of the round `number` of a layer. `processes` is empty if this process is all there
  /// is.
  Reduction(std::shared_ptr<Membership> members, std::uint64_t number, Direction direction,
            std::shared_ptr<RoundLink> processes = nullptr);
  ~Reduction() override;

  /// "SyncBatchNorm 'bn0' round 3 forward", for messages.
  const std::string& name() const { return name_; }

  /// Lets `pass` sum up on the calling thread, of a device that then arrives with it or fails.
  /// Throws what it throws.
  void sum(DevicePass* pass);

  /// `pass` is finished or fails once: now, later by the last device to arrive, or by fail().
  /// Throws InternalError instead if the device has come before.
  void arrive(const Device& device, std::shared_ptr<DevicePass> pass);

  /// Every pass that waits, and every one that still comes, fails with `error`, which is put after
  /// the name of the reduction. Without effect once all have met.
  void fail(const std::string& error) override;

  /// The same where it waits for devices of this process.
  void interrupt(const Interruption& interruption) override;

  void warn(Seconds waited, Seconds limit) override;
  void give_up(Seconds waited) override;

 private:
  struct State {
    std::set<Device> present;
    bool is_sent = false;
  };

  State state();
  std::string awaited(const State& state) const;
  std::string describe(const State& state) const;
  DevicePasses passes() const;
  DevicePasses take_passes(std::unique_lock<std::mutex>& lock);
  void exchange(std::unique_lock<std::mutex>& lock, const std::shared_ptr<DevicePass>& last);
  void answered(const std::vector<PartialStatistics>& processes, const std::string& error,
                const std::shared_ptr<DevicePass>& last);
  template <class BeforeTelling>
  void end_with(const std::string& error, const BeforeTelling& before_telling);

  const std::shared_ptr<Membership> members_;
  const std::uint64_t number_;
  const Direction direction_;
  const std::string name_;
  const std::shared_ptr<RoundLink> processes_;
  std::atomic<std::size_t> coming_{0};
  std::mutex mutex_;
  bool sent_ = false;  // to the other processes
  bool done_ = false;
  std::optional<std::string> error_;
  std::map<Device, std::shared_ptr<DevicePass>> passes_;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_SYNC_REDUCTION_H_

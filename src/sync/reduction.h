#ifndef GLUON_SYNCBN_SYNC_REDUCTION_H_
#define GLUON_SYNCBN_SYNC_REDUCTION_H_

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/device.h"
#include "common/watchdog.h"
#include "distributed/inter_process_reduce.h"
#include "norm/device_pass.h"
#include "sync/attendance.h"

namespace gluon_syncbn {

/// One forward or backward pass of all devices: each leaves its own, and nobody waits. The last
/// device to arrive finishes them all, or, if there are other processes, reduces them to a message
/// for these; then the answer finishes them.
class Reduction : public Waiting, public std::enable_shared_from_this<Reduction> {
 public:
  /// `option` is what users know `num_devices` as. `processes` is empty if this process is all
  /// there is.
  Reduction(std::string what, std::size_t num_devices, std::shared_ptr<Attendance> attendance,
            std::string option = "num_devices",
            std::shared_ptr<InterProcessReduce> processes = nullptr);
  ~Reduction() override;

  /// Begins `pass` on the calling thread, of a device that then arrives with it or fails. Throws
  /// what it throws.
  void begin(DevicePass* pass);

  /// `pass` is finished or fails once: now, later by the last device to arrive, or by fail().
  /// Throws InternalError instead if the device has come before.
  void arrive(const Device& device, std::shared_ptr<DevicePass> pass);

  /// Every pass that waits, and every one that still comes, fails with `error`, which is put behind
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
  void send(std::unique_lock<std::mutex>& lock, const std::shared_ptr<DevicePass>& last);
  void come_back(const std::vector<PartialStatistics>& processes, const std::string& error,
                 const std::shared_ptr<DevicePass>& last);
  template <class BeforeTelling>
  void end_with(const std::string& error, const BeforeTelling& before_telling);

  const std::string what_;
  const std::size_t num_devices_;
  const std::shared_ptr<Attendance> attendance_;
  const std::string option_;
  const std::shared_ptr<InterProcessReduce> processes_;
  std::atomic<std::size_t> begun_{0};
  std::mutex mutex_;
  bool sent_ = false;  // to the other processes
  bool done_ = false;
  std::optional<std::string> error_;
  std::map<Device, std::shared_ptr<DevicePass>> passes_;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_SYNC_REDUCTION_H_

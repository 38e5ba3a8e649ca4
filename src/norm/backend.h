#ifndef GLUON_SYNCBN_NORM_BACKEND_H_
#define GLUON_SYNCBN_NORM_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "common/layout.h"
#include "common/write_mode.h"
#include "norm/activation.h"
#include "norm/moments.h"

namespace gluon_syncbn {

/// Mean, variance and inverse deviation of every channel, where and how the backend that made them
/// keeps them.
class Statistics {
 public:
  virtual ~Statistics() = default;
};
using StatisticsPtr = std::shared_ptr<const Statistics>;

struct RunningStatistics {
  void* mean = nullptr;
  void* variance = nullptr;
  /// Weight of the old values; nothing for the average over all batches.
  std::optional<double> momentum;
  void* num_batches = nullptr;  ///< of that average so far; null if there is a momentum
};

/// Running statistics as they were once; null until a backend has saved them.
struct SavedStatistics {
  std::shared_ptr<void> values;
};

/// Running statistics, and the statistics of the batches that move them, in this order.
struct Update {
  RunningStatistics running;
  std::vector<StatisticsPtr> batches;
  /// Not null: what `running` starts from or, if nothing is saved there yet, is saved to.
  std::shared_ptr<SavedStatistics> saved;
  std::unique_lock<std::mutex> turn = {};  ///< held until the statistics have moved
};

/// A call of the layer on one device, which owns the arrays of a pass.
class Call {
 public:
  virtual ~Call() = default;

  /// All devices have come. Called for one device after the other, before anything is computed from
  /// the partial statistics, and for no other layer meanwhile: what is decided here is decided in
  /// one order on all devices. May throw.
  virtual void meet() {}

  /// In forward, once the devices have met: takes the statistics of the batch, which has `count`
  /// elements per channel, and gives what moves the running statistics. May throw.
  virtual Update update(const StatisticsPtr& /*batch*/, std::int64_t /*count*/) { return {}; }

  /// Runs `task` later, on a thread of the device. Throws if it cannot.
  virtual void post(std::function<void()> task) = 0;

  /// Called once and from any thread: nothing uses the arrays any more. `error` says what went
  /// wrong, or is "".
  virtual void complete(const std::string& error) = 0;
};

enum class Direction { kForward, kBackward };

class DevicePass;
/// In the order of devices.
using DevicePasses = std::vector<std::shared_ptr<DevicePass>>;

/// The forward or backward pass of one device, as far as it has to do with other devices.
///
/// Each device sums up on its own thread. The last device to arrive then finishes the passes of
/// all. If there are other processes, it first gathers what these have to know, and finishes with
/// the answer. Each pass is finished or fails, once, and then completes its call.
class DevicePass {
 public:
  virtual ~DevicePass() = default;

  /// Computes the partial statistics of this device. It may leave some to gather() or finish() once
  /// `all_are_coming`, because these can compute for all devices together. Throws Error.
  virtual void sum(const std::function<bool()>& all_are_coming) = 0;

  using Then = std::function<void(const PartialStatistics& merged, const std::string& error)>;
  /// Calls `then` exactly once, now or later, from any thread, with the partial statistics of
  /// `passes`, of which this is one, merged in the order of devices. Does not throw.
  virtual void gather(const DevicePasses& passes, Then then) = 0;

  /// Computes all that is left in `passes`, of which this is one and the others are like it.
  /// `processes` are the partial statistics of all processes in their order; if there are none,
  /// `passes` are all there is. Does not throw.
  virtual void finish(const DevicePasses& passes,
                      const std::vector<PartialStatistics>& processes) = 0;

  /// The devices have not met. Does not throw.
  virtual void fail(const std::string& error) = 0;

  virtual Call& call() = 0;
};

/// Lets `passes` meet and `last`, which is one of them, finish all. Does not throw.
void meet_and_finish(DevicePass* last, const DevicePasses& passes,
                     const std::vector<PartialStatistics>& processes);

/// For a pass that waits for no other device. Does not throw.
void finish_alone(const std::shared_ptr<DevicePass>& pass);

/// What computes for one device. Arrays lie in its memory; those of parameters and running
/// statistics hold the type DTypes::Parameter.
class Backend {
 public:
  /// The arrays x, y, dy and dx of a call.
  struct Data {
    DType dtype = DType::kFloat32;
    Layout layout;
  };
  /// y = act(z), or act(z + shortcut) with z = (x - mean) / sqrt(variance + eps) * gamma + beta.
  struct Forward {
    Data data;
    const void* x = nullptr;
    double eps = 0;
    const void* gamma = nullptr;  ///< null: 1
    const void* beta = nullptr;
    Activation activation;
    const void* shortcut = nullptr;  ///< null: none
    WriteMode write = WriteMode::kAssign;
    void* y = nullptr;  ///< null: not wanted
  };
  /// What backward writes; null: not wanted.
  struct Gradients {
    bool fix_gamma = false;
    WriteMode write_gamma = WriteMode::kAssign;
    void* gamma = nullptr;
    WriteMode write_beta = WriteMode::kAssign;
    void* beta = nullptr;
    WriteMode write_data = WriteMode::kAssign;
    void* data = nullptr;
    WriteMode write_shortcut = WriteMode::kAssign;
    void* shortcut = nullptr;
  };
  struct Backward {
    Data data;
    const void* dy = nullptr;
    const void* x = nullptr;
    bool inplace = false;  ///< y and beta tell x, which is not there
    StatisticsPtr statistics;
    bool of_batch = true;         ///< false if the running statistics were used
    std::int64_t count = 0;       ///< elements of a channel in the batch
    const void* gamma = nullptr;  ///< null: 1
    Activation activation;
    // What tells how steep the activation was: the normalization, computed again, or the output.
    const void* beta = nullptr;
    const void* y = nullptr;
    Gradients gradients;
  };

  virtual ~Backend() = default;

  /// In training, by the statistics of the batch.
  virtual std::shared_ptr<DevicePass> forward(const Forward& work, std::shared_ptr<Call> call) = 0;
  /// In place, throws Error or ends the pass with one if a gamma is so small that the output does
  /// not tell x (Invertible).
  virtual std::shared_ptr<DevicePass> backward(const Backward& work,
                                               std::shared_ptr<Call> call) = 0;

  /// Statistics for inference() and a backward pass after it.
  virtual StatisticsPtr running_statistics(const Data& data, const void* running_mean,
                                           const void* running_variance, double eps) = 0;
  /// A forward pass by running statistics. Throws Error instead of completing the call.
  virtual void inference(const Forward& work, const StatisticsPtr& statistics,
                         std::shared_ptr<Call> call) = 0;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_NORM_BACKEND_H_

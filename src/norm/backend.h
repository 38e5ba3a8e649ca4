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
#include "norm/device_pass.h"
#include "norm/statistics.h"

namespace gluon_syncbn {

/// What computes for one device. Arrays lie in its memory; those of parameters and running
/// statistics hold the type DTypes::Parameter.
class Backend {
 public:
  using StatisticsPtr = std::shared_ptr<const Statistics>;
  /// Tells the owner of a pass, once and from any thread, that nothing uses its arrays any more,
  /// with what went wrong or "".
  using Done = std::function<void(const std::string& error)>;

  /// The arrays x, y, dy and dx of a call.
  struct Data {
    DType dtype = DType::kFloat32;
    Layout layout;
  };
  struct RunningStatistics {
    void* mean = nullptr;
    void* variance = nullptr;
    /// Weight of the old values; nothing for the average over all batches.
    std::optional<double> momentum;
    void* num_batches = nullptr;  ///< of that average so far; null where there is a momentum
  };
  /// Running statistics as they were once; null until a backend has saved them.
  struct SavedStatistics {
    std::shared_ptr<void> values;
  };
  /// Running statistics, and those of the batches that move them, in this order.
  struct Update {
    RunningStatistics running;
    std::vector<StatisticsPtr> batches;
    /// Not null: what `running` starts from or, if nothing is saved there yet, is saved to.
    std::shared_ptr<SavedStatistics> saved;
    std::unique_lock<std::mutex> turn = {};  ///< held until the statistics have moved
  };
  /// y = act(z), or act(z + shortcut) with z = (x - mean) / sqrt(variance + eps) * gamma + beta.
  struct Normalization {
    Data data;
    const void* x = nullptr;
    double eps = 0;
    const void* gamma = nullptr;  ///< null: 1
    const void* beta = nullptr;
    Activation activation;
    const void* shortcut = nullptr;  ///< null: none
    WriteMode write = WriteMode::kAssign;
    void* y = nullptr;  ///< null: not wanted
    Done done;
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

  /// A forward pass in training, by the statistics of the batch.
  struct Forward : Normalization {
    /// Called once the devices have met; see DevicePass.
    std::function<void()> met = [] {};
    /// Called after that, with the statistics of the batch and the elements of a channel in it.
    /// Gives what moves the running statistics.
    std::function<Update(const StatisticsPtr& batch, std::int64_t count)> merged;
    /// Runs a task on a thread of the device, later.
    std::function<void(std::function<void()> task)> post;
  };
  /// The backward pass of one, or of an inference.
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
    std::function<void(std::function<void()> task)> post;  ///< as in Forward
    Done done;
  };

  virtual ~Backend() = default;

  virtual std::shared_ptr<DevicePass> forward(Forward pass) = 0;
  /// In place, throws Error or ends the pass with one if a gamma is so small that the output does
  /// not tell x (Invertible).
  virtual std::shared_ptr<DevicePass> backward(Backward pass) = 0;

  /// Statistics for inference() and a backward pass behind it.
  virtual StatisticsPtr running_statistics(const Data& data, const void* running_mean,
                                           const void* running_variance, double eps) = 0;
  /// A forward pass by running statistics. Throws Error instead of calling `done`.
  virtual void inference(Normalization pass, const StatisticsPtr& statistics) = 0;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_NORM_BACKEND_H_

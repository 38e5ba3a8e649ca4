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
#include "norm/device_pass.h"
#include "norm/moments.h"
#include "norm/statistics.h"

namespace gluon_syncbn {

/// How one device computes. Arrays lie in its memory; those of parameters and running statistics
/// hold what parameter_element() says. Work is done in the order of the calls, perhaps later than
/// they return; finish() tells when. Throws Error.
class Backend {
 public:
  /// The arrays x, y, dy and dx of a call.
  struct Data {
    Element element = Element::kFloat32;
    Layout layout;
  };
  /// What backward writes; null: not wanted.
  struct Gradients {
    bool fix_gamma = false;
    Write write_gamma = Write::kAssign;
    void* gamma = nullptr;
    Write write_beta = Write::kAssign;
    void* beta = nullptr;
    Write write_data = Write::kAssign;
    void* data = nullptr;
  };
  struct RunningStatistics {
    void* mean = nullptr;
    void* variance = nullptr;
    /// Weight of the old values; nothing for the average over all batches.
    std::optional<double> momentum;
    void* num_batches = nullptr;  ///< of that average so far; null where there is a momentum
  };
  using StatisticsPtr = std::shared_ptr<const Statistics>;
  /// Running statistics, and those of the batches that move them, in this order.
  struct Update {
    RunningStatistics running;
    std::vector<StatisticsPtr> batches;
    std::unique_lock<std::mutex> turn = {};  ///< held until the statistics have moved
  };

  /// A forward pass in training.
  struct Forward {
    Data data;
    const void* x = nullptr;
    double eps = 0;
    const void* gamma = nullptr;  ///< null: 1
    const void* beta = nullptr;
    Write write = Write::kAssign;
    void* y = nullptr;  ///< null: not wanted
    /// Called with the statistics of the batch and the elements of a channel in it.
    std::function<Update(const StatisticsPtr& batch, std::int64_t count)> met;
    Share::Post post;
    Share::Done done;
  };
  /// The backward pass of one.
  struct Backward {
    Data data;
    const void* dy = nullptr;
    const void* x = nullptr;
    StatisticsPtr statistics;
    std::int64_t count = 0;
    const void* gamma = nullptr;  ///< null: 1
    Gradients gradients;
    Share::Post post;
    Share::Done done;
  };

  virtual ~Backend() = default;

  /// Whether the calls below compute before they return, so that they should be made on a thread
  /// that may be kept busy for this device.
  virtual bool keeps_caller_busy() const = 0;

  /// What a device brings to a pass where the devices compute for each other; null where every
  /// device computes for itself, by the phases below.
  virtual std::shared_ptr<Share> share(Forward) { return nullptr; }
  virtual std::shared_ptr<Share> share(Backward) { return nullptr; }

  /// Those of this device, for its peers.
  virtual Moments moments(const Data& data, const void* x) = 0;

  /// Statistics that hold nothing before normalize() has been called with them.
  virtual StatisticsPtr batch_statistics(const Data& data, const Moments& merged, double eps) = 0;
  virtual StatisticsPtr running_statistics(const Data& data, const void* running_mean,
                                           const void* running_variance, double eps) = 0;
  /// Moves running statistics towards those of a batch.
  virtual void move_averages(const Data& data, const Statistics& batch,
                             const RunningStatistics& running) = 0;
  /// All that is left of a forward pass once its devices have met: the update, in which
  /// `statistics` may be, and the output. `gamma` may be null: 1; and `y`: not wanted.
  virtual void normalize(const Data& data, const void* x, const Statistics& statistics,
                         const void* gamma, const void* beta, Write write, void* y,
                         const Update& update) = 0;

  /// Those of this device, for its peers.
  virtual GradientSums gradient_sums(const Data& data, const void* dy, const void* x,
                                     const Statistics& statistics) = 0;
  /// The gradient of the input, and the share of this device, whose sums are `own`, in those of
  /// gamma and beta. `all_devices` is null where the statistics are not those of the batch, and
  /// `count` then without meaning. `gamma` may be null: 1.
  virtual void gradients(const Data& data, const void* dy, const void* x,
                         const Statistics& statistics, const GradientSums& own,
                         const GradientSums* all_devices, std::int64_t count, const void* gamma,
                         const Gradients& gradients) = 0;

  /// Calls `done` from any thread once all work so far is done, with what went wrong in it or "".
  /// Never throws, and calls `done` in every case.
  virtual void finish(std::function<void(const std::string& error)> done) = 0;
};

/// That of the CPU, which has no memory of its own.
const std::shared_ptr<Backend>& cpu_backend();

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_NORM_BACKEND_H_

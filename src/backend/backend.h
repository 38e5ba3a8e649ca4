#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/dtype.h"
#include "common/layout.h"
#include "common/per_process.h"
#include "norm/activation.h"
#include "norm/coefficients.h"
#include "norm/partial_statistics.h"
#include "norm/per_channel.h"
#include "norm/variants.h"

namespace gluon_syncbn {

// Arrays lie in the memory of the device. Parameters and running statistics have the type
// DTypes::Parameter.

/// What the arrays x, y, dy and dx of a pass have in common.
struct ArrayKind {
  DType dtype = DType::kFloat32;
  Layout layout;
};

/// The running statistics, which a training pass moves towards the statistics of its batch. An
/// inference pass needs no momentum.
struct Running {
  void* mean = nullptr;  ///< null: the running statistics stay
  void* variance = nullptr;
  std::optional<double> momentum;  ///< weight of the old values; empty: average over all batches
  void* num_batches = nullptr;     ///< batches averaged so far; null if there is a momentum

  template <class P>
  RunningAverages<P> averages() const {
    return {static_cast<P*>(mean), static_cast<P*>(variance), momentum.value_or(0),
            static_cast<P*>(num_batches)};
  }
};

/// The results of a forward pass that its backward pass needs, besides arrays. They lie in the
/// memory of the device. The operator keeps them from the end of forward until the next forward.
struct Saved {
  std::shared_ptr<double> mean;
  std::shared_ptr<double> inv_std;
  std::shared_ptr<void> normalizations;  ///< of GPU kernels; null on CPU contexts
  /// Elements of a channel in the batch; 0 if the running statistics were used.
  std::int64_t count = 0;
};

/// y = act(z), or act(z + shortcut) with z = (x - mean) / sqrt(variance + eps) * gamma + beta.
struct Forward {
  ArrayKind kind;
  bool is_inference = false;  ///< normalizes by the running statistics, and does not move them
  const void* x = nullptr;
  double eps = 0;
  const void* gamma = nullptr;  ///< null: 1
  const void* beta = nullptr;
  Activation activation;
  const void* shortcut = nullptr;  ///< null: none
  DzFrom dz_from = DzFrom::kDy;    ///< of the backward pass
  WriteMode write = WriteMode::kAssign;
  void* y = nullptr;  ///< null: not wanted
  Running running;
  Saved* saved = nullptr;  ///< written before the pass completes
};

/// The gradients that a backward pass writes; null: not wanted.
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
  ArrayKind kind;
  const void* dy = nullptr;
  DzFrom dz_from = DzFrom::kDy;
  // The arrays that reads_of(dz_from) does not name are null.
  const void* x = nullptr;
  const void* beta = nullptr;
  const void* y = nullptr;
  Saved saved;
  const void* gamma = nullptr;  ///< null: 1
  Activation activation;
  Gradients gradients;

  bool inplace() const { return dz_from == DzFrom::kInPlace; }
  template <class T>
  BackwardInputs<T> inputs() const {
    return {dz_from,
            activation,
            {static_cast<const T*>(dy), static_cast<const T*>(inplace() ? y : x),
             static_cast<const T*>(reads_of(dz_from).output ? y : dy)}};
  }
  /// Without elements the gradient of gamma is 0.
  template <class P>
  ParameterGradients<P> parameter_gradients() const {
    return {static_cast<P*>(gradients.gamma), static_cast<P*>(gradients.beta),
            gradients.write_gamma, gradients.write_beta,
            gradients.fix_gamma || kind.layout.count() == 0};
  }
};

using Work = std::variant<Forward, Backward>;

/// The parameters of a Forward or Backward.
template <class P, class Pass>
ChannelParameters<P> parameters_of(const Pass& work, const Saved& saved) {
  return {saved.mean.get(), saved.inv_std.get(), static_cast<const P*>(work.gamma),
          static_cast<const P*>(work.beta)};
}

/// Gets what went wrong, or "".
using Done = std::function<void(const std::string& error)>;

class Backend;

/// The forward or backward pass of one device, which its backend has begun.
struct Pass {
  Work work;
  /// Called once, from any thread, when nothing uses the arrays any more, and null after that.
  Done complete;
  const Backend* backend = nullptr;
  PartialStatistics statistics = {};  ///< of this device

  const Forward* forward() const { return std::get_if<Forward>(&work); }
  const Backward* backward() const { return std::get_if<Backward>(&work); }
  const ArrayKind& kind() const { return forward() ? forward()->kind : backward()->kind; }
  Direction direction() const { return forward() ? Direction::kForward : Direction::kBackward; }
};
using PassPtr = std::shared_ptr<Pass>;
/// The passes of all devices, in the order of devices.
using Passes = std::vector<PassPtr>;

/// The partial statistics of all devices, in the order of devices.
inline std::vector<PartialStatistics> parts_of(const Passes& passes) {
  std::vector<PartialStatistics> parts;
  for (const auto& pass : passes) parts.push_back(pass->statistics);
  return parts;
}

/// Computes on one kind of device. Each device begins its own pass. When all devices have come, one
/// call finishes the passes of all. If other processes take part, a call before it lets all devices
/// sum, for the message to the other processes, and their answer finishes.
class Backend {
 public:
  virtual ~Backend() = default;

  /// Begins the pass of the context `device`: computes its partial statistics, or leaves that to
  /// the functions below, which may compute those of all devices together. Throws Error; then
  /// nothing uses the arrays any more, and `complete` is not called. An error is a gamma that is
  /// too small to recover x in place (Invertible), unless it becomes that of the pass.
  virtual PassPtr begin(int device, Work work, Done complete) const = 0;

  /// Calls `then` exactly once, now or later, from any thread: when the partial statistics of all
  /// passes are in Pass::statistics, or with an error. Does not throw.
  virtual void sum(const Passes& passes, Done then) const = 0;

  /// Computes all outputs of `passes`, and completes each pass: y, the statistics for backward and
  /// the running statistics; or the gradients. `merged` has the partial statistics of all
  /// processes. It is empty if `passes` are the whole batch. With an `error` it only completes
  /// them. Does not throw.
  virtual void finish(const Passes& passes, const std::optional<PartialStatistics>& merged,
                      const std::string& error) const = 0;

  /// Writes NaN into an array of any dtype, after earlier work of the device. Returns when the
  /// array is written. Throws Error.
  virtual void fill_with_nan(int device, void* array, std::size_t bytes) const = 0;

 protected:
  /// A byte of a NaN in every dtype.
  static constexpr int kNanByte = 0xFF;
};

/// A backend holds this lock while it moves the running statistics of all devices of a process, or
/// queues their moves. If several uses share running statistics, all devices update them in one
/// order. Backward passes move none, and need no lock.
inline std::unique_lock<std::mutex> lock_running_statistics(Direction direction) {
  if (direction == Direction::kBackward) return {};
  struct OfAllLayers {
    std::mutex mutex;
  };
  return std::unique_lock<std::mutex>(PerProcess<OfAllLayers>::instance().mutex);
}

/// Finishes a pass that waits for no other device. Does not throw.
inline void finish_alone(const PassPtr& pass) { pass->backend->finish({pass}, std::nullopt, ""); }

/// Completes a pass with an error, as when the devices have not met. Does not throw.
inline void fail(const PassPtr& pass, const std::string& error) {
  pass->backend->finish({pass}, std::nullopt, error);
}

}  // namespace gluon_syncbn

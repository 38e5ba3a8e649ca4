#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "common/layout.h"
#include "common/write_mode.h"
#include "norm/activation.h"
#include "norm/moments.h"
#include "norm/per_channel.h"

namespace gluon_syncbn {

/// Mean, variance and inverse deviation of every channel, in the form and memory of the backend
/// that made them.
class Statistics {
 public:
  virtual ~Statistics() = default;
};
using StatisticsPtr = std::shared_ptr<const Statistics>;

/// A call of the layer on one device, for which a pass computes. It owns the arrays of the pass.
class Call {
 public:
  virtual ~Call() = default;

  /// Called once, from any thread, when nothing uses the arrays any more. `error` says what went
  /// wrong, or is "".
  virtual void complete(const std::string& error) = 0;
};

class DevicePass;
/// The passes of all devices, in the order of devices.
using DevicePasses = std::vector<std::shared_ptr<DevicePass>>;

/// The forward or backward pass of one device: sum, merge, finish.
///
/// Each device lets its own pass sum. The last device to arrive finishes the passes of all. If
/// other processes take part, it first merges the sums of this process for them, and finishes with
/// their answer. Each pass is finished once or fails once, and then completes its call.
class DevicePass {
 public:
  virtual ~DevicePass() = default;

  /// Begins to compute the partial statistics of this device, or leaves them to merge() or
  /// finish(), which may compute them for all devices together. Throws Error.
  virtual void sum() = 0;

  using OnMerged = std::function<void(const PartialStatistics& merged, const std::string& error)>;
  /// Merges the partial statistics of `passes`, which contain this pass, for other processes. Calls
  /// `then` exactly once, now or later, from any thread. Does not throw.
  virtual void merge(const DevicePasses& passes, OnMerged then) = 0;

  /// Computes all outputs of `passes`, which contain this pass: y, the statistics for backward and
  /// the running statistics; or the gradients. `processes` has the merged partial statistics of
  /// every process in their order. It is empty if `passes` are the whole batch. Does not throw.
  virtual void finish(const DevicePasses& passes,
                      const std::vector<PartialStatistics>& processes) = 0;

  /// Completes the call with an error, as when the devices have not met. Does not throw.
  virtual void fail(const std::string& error) = 0;
};

/// Computes for one device. Arrays lie in the memory of the device. Parameters and running
/// statistics have the type DTypes::Parameter.
class Backend {
 public:
  /// What the arrays x, y, dy and dx of a call have in common.
  struct Data {
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
  /// The results of a forward pass that its backward pass needs, besides arrays.
  struct Saved {
    StatisticsPtr statistics;
    /// Elements of a channel in the batch; 0 if the running statistics were used.
    std::int64_t count = 0;
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
    bool inplace = false;            ///< the backward pass will recover x from y
    WriteMode write = WriteMode::kAssign;
    void* y = nullptr;  ///< null: not wanted
    Running running;
    Saved* saved = nullptr;  ///< written before the call completes
  };
  /// The gradients that backward writes; null: not wanted.
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
    bool inplace = false;  ///< x is not used; the pass recovers the input from y and beta
    Saved saved;
    const void* gamma = nullptr;  ///< null: 1
    Activation activation;
    // With a shortcut y determines the slope of the activation, otherwise beta, with which z is
    // computed again. A pass in place reads both.
    const void* beta = nullptr;
    const void* y = nullptr;
    Gradients gradients;

    /// Without elements the sum is 0, also where inv_std is infinite.
    bool gamma_gradient_is_zero() const { return gradients.fix_gamma || data.layout.count() == 0; }
    template <class P>
    ParameterGradient<P> gamma_gradient() const {
      return {static_cast<P*>(gradients.gamma), gradients.write_gamma};
    }
    template <class P>
    ParameterGradient<P> beta_gradient() const {
      return {static_cast<P*>(gradients.beta), gradients.write_beta};
    }
  };

  virtual ~Backend() = default;

  /// The pass of a training forward, which normalizes by the statistics of the batch.
  virtual std::shared_ptr<DevicePass> forward(const Forward& work, std::shared_ptr<Call> call) = 0;
  /// In place, throws Error or fails the pass if a gamma is too small to recover x (Invertible).
  virtual std::shared_ptr<DevicePass> backward(const Backward& work,
                                               std::shared_ptr<Call> call) = 0;

  /// Runs a forward pass that normalizes by the running statistics. Completes the call, or throws
  /// Error instead.
  virtual void inference(const Forward& work, std::shared_ptr<Call> call) = 0;

  /// Writes NaN into an array of any dtype, after earlier work of this device. Returns when the
  /// array is written. Throws Error.
  virtual void fill_with_nan(void* array, std::size_t bytes) = 0;

 protected:
  /// A byte of a NaN in every dtype.
  static constexpr int kNanByte = 0xFF;
};

}  // namespace gluon_syncbn

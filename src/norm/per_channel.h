#pragma once

#include <cmath>
#include <cstdint>

// The results of one channel, for all kinds of device. They are computed in double.

namespace gluon_syncbn {

/// Whether a kernel replaces the elements of its output array or adds to them (MXNet's grad_req).
enum class WriteMode { kAssign, kAdd };

inline double inv_std_of(double variance, double eps) { return 1.0 / std::sqrt(variance + eps); }

/// Where a device writes the gradients of gamma and beta. They come from the sums of this device
/// alone, because the trainer later adds the gradients of all devices.
template <class P>
struct ParameterGradients {
  P* gamma;  ///< null: not wanted
  P* beta;   ///< null: not wanted
  WriteMode write_gamma;
  WriteMode write_beta;
  /// The gradient of gamma is 0, also where inv_std is infinite and 0 * inv_std is NaN.
  bool gamma_gradient_is_zero;

  /// `dz` and `dz_centered` are the sums of dz and of dz * (x - mean).
  void put(std::int64_t c, double dz, double dz_centered, double inv_std) const {
    write(gamma, c, write_gamma, gamma_gradient_is_zero ? 0.0 : dz_centered * inv_std);
    write(beta, c, write_beta, dz);
  }

 private:
  static void write(P* values, std::int64_t c, WriteMode mode, double value) {
    if (!values) return;
    const double before = mode == WriteMode::kAdd ? static_cast<double>(values[c]) : 0.0;
    values[c] = static_cast<P>(before + value);
  }
};

/// The running statistics of a device, which a batch moves unless it has no elements.
///
/// The running variance is biased, as in MXNet; statistics/whole_data_set.py and
/// diagnose/self_test.py expect that. The unbiased one of PyTorch, variance * count / (count - 1),
/// would take the count of the batch too.
template <class P>
struct RunningAverages {
  P* mean;  ///< null: the running statistics stay
  P* variance;
  double momentum;  ///< the weight of the old values
  P* num_batches;   ///< batches so far, for the average over all batches; null: `momentum` is used

  /// To be called for all channels before count_batch().
  void move(std::int64_t c, double batch_mean, double batch_variance) const {
    if (!mean) return;
    const double weight =
        num_batches ? 1.0 - 1.0 / (static_cast<double>(*num_batches) + 1.0) : momentum;
    const P new_mean = moved(mean[c], weight, batch_mean);
    variance[c] = moved(variance[c], weight, batch_variance);
    mean[c] = new_mean;
  }
  void count_batch() const {
    if (num_batches) *num_batches += P(1);
  }

 private:
  /// The explicit fma makes all devices compute the same bits. Without it a compiler could fuse
  /// either of the two products with the sum, or none.
  static P moved(P average, double weight, double batch) {
    return static_cast<P>(std::fma(static_cast<double>(average), weight, batch * (1.0 - weight)));
  }
};

}  // namespace gluon_syncbn

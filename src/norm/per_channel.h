#pragma once

#include <cmath>
#include <cstdint>

// The numbers of one channel, for all kinds of device: S. Ioffe and C. Szegedy, "Batch
// Normalization: Accelerating Deep Network Training by Reducing Internal Covariate Shift", 2015,
// algorithm 1 and section 3. They are computed in double. R is the type in which kernels compute.

namespace gluon_syncbn {

/// Whether a kernel replaces the elements of its output array or adds to them (MXNet's grad_req).
enum class WriteMode { kAssign, kAdd };

/// The difference between the mean and its value rounded to R: x - mean is (x - R(mean)) - rest.
/// The kernels add the rest, times its factor, to their constant term. So the result is exact to R
/// even if the mean is thousands of standard deviations from zero.
template <class R>
inline double rest_of(double mean) {
  return mean - static_cast<double>(static_cast<R>(mean));
}

inline double inv_std_of(double variance, double eps) { return 1.0 / std::sqrt(variance + eps); }

/// The gamma of a channel. `gamma` is null for 1.
template <class P>
P gamma_of(const P* gamma, std::int64_t c) {
  return gamma ? gamma[c] : P(1);
}

/// The scale of z = (x - mean) * scale + beta.
template <class P>
double scale_of(const P* gamma, std::int64_t c, double inv_std) {
  return static_cast<double>(gamma_of(gamma, c)) * inv_std;
}

/// The shift of z = (x - R(mean)) * scale + shift.
template <class R>
double shift_of(double mean, double scale, double beta) {
  return beta - rest_of<R>(mean) * scale;
}

/// dx = dz * scale + (x - mean) * x_factor + constant, with the scale of z.
struct InputGradientFactors {
  double x_factor;
  double constant;

  /// The sums of dz and dz * (x - mean) are those of all devices, which have `count` elements.
  static InputGradientFactors of(double dz, double dz_centered, double count, double scale,
                                 double inv_std) {
    const double share = -scale / count;
    return {share * dz_centered * inv_std * inv_std, share * dz};
  }
  /// The constant for (x - R(mean)) * x_factor. Without an x_factor the mean may be infinite or
  /// NaN.
  template <class R>
  double constant_for(double mean) const {
    return x_factor == 0 ? constant : constant - rest_of<R>(mean) * x_factor;
  }
};

/// Where a device writes the gradient of gamma or beta. It comes from the sums of this device
/// alone, because the trainer later adds the gradients of all devices.
template <class P>
struct ParameterGradient {
  P* values;  ///< null: not wanted
  WriteMode write;

  void put(std::int64_t c, double value) const {
    if (!values) return;
    const double before = write == WriteMode::kAdd ? static_cast<double>(values[c]) : 0.0;
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

#ifndef GLUON_SYNCBN_NORM_MOMENTS_H_
#define GLUON_SYNCBN_NORM_MOMENTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/host_device.h"
#include "norm/device_pass.h"

namespace gluon_syncbn {

/// A part as it travels between memories and processes: two numbers for every channel, the second
/// ones behind the first of all channels.
struct FlatPart {
  std::int64_t count = 0;  ///< of Moments
  std::vector<double> values;
};

/// What a device that computes elsewhere than on the host leaves for its peers there.
class RemotePart {
 public:
  using Then = std::function<void(const FlatPart& part, const std::string& error)>;

  virtual ~RemotePart() = default;

  /// Calls `then` exactly once, now or later, from any thread, with a copy on the host or with what
  /// went wrong. Parts of one device are fetched in the order of the calls. Does not throw.
  virtual void fetch(Then then) const = 0;

  /// What `part` is for all devices that could have read this one. Throws Error.
  virtual std::shared_ptr<const RemotePart> with(const FlatPart& part) const = 0;
};

/// In the order of devices. Only the backend that made them can compute with them.
using RemoteParts = std::vector<std::shared_ptr<const RemotePart>>;

/// Count, mean and sum of squared deviations from the mean of every channel.
///
/// Moments of disjoint samples merge without loss of precision by the update of T. F. Chan,
/// G. H. Golub and R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
/// variances", 1979, eq. 2.1. A sum of squares would cancel where the mean is large.
struct Moments {
  std::int64_t count = 0;    ///< elements per channel; 64 bits, never a float
  std::vector<double> mean;  ///< one per channel
  std::vector<double> m2;    ///< one per channel
  RemoteParts remote = {};   ///< where not empty, mean and m2 are, and are in these
  Shares shares = {};        ///< where not empty, nothing else is set: whoever merges does these

  /// Merges in the order of `parts`. Parts without elements weigh nothing.
  static Moments merge(const std::vector<const Moments*>& parts);
  /// The numbers of the channels from `begin` to `end`; `merged` has room for those of all.
  static void merge(const std::vector<const Moments*>& parts, std::size_t begin, std::size_t end,
                    Moments* merged);

  /// Of all elements; 0 if there are none, so that what is computed with it stays a number.
  double variance(std::size_t channel) const {
    return count > 0 ? m2[channel] / static_cast<double>(count) : 0.0;
  }

  FlatPart flat() const;
  static Moments of(const FlatPart& flat);
};

/// Merges the moments of `count_b` elements into those of `count_a` elements of one channel.
GLUON_SYNCBN_HOST_DEVICE inline void merge_channel(std::int64_t count_a, double* mean_a,
                                                   double* m2_a, std::int64_t count_b,
                                                   double mean_b, double m2_b) {
  const double delta = mean_b - *mean_a;
  const double weight_b = static_cast<double>(count_b) / static_cast<double>(count_a + count_b);
  *mean_a += delta * weight_b;
  *m2_a += m2_b + delta * delta * weight_b * static_cast<double>(count_a);
}

/// What the backward pass exchanges, one per channel: the sum of the output gradient and the sum
/// of its product with the centred input.
struct GradientSums {
  std::vector<double> dy;
  std::vector<double> dy_centered;
  RemoteParts remote = {};  ///< as in Moments
  Shares shares = {};       ///< as in Moments

  static GradientSums merge(const std::vector<const GradientSums*>& parts);
  static void merge(const std::vector<const GradientSums*>& parts, std::size_t begin,
                    std::size_t end, GradientSums* merged);

  FlatPart flat() const;
  static GradientSums of(const FlatPart& flat);
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_NORM_MOMENTS_H_

#ifndef GLUON_SYNCBN_COMMON_SIGNATURE_H_
#define GLUON_SYNCBN_COMMON_SIGNATURE_H_

#include <cstdint>
#include <optional>
#include <string>

namespace gluon_syncbn {

/// What all devices of a round must agree on.
struct Signature {
  std::int64_t channels = 0;
  std::string dtype;
  double eps = 0;
  std::optional<double> momentum;  ///< nothing for the average over all batches
  std::string context = "cpu";     ///< type of the device

  /// Names the first value that differs as "channels 3 and 4"; nothing where all agree.
  std::optional<std::string> difference(const Signature& other) const;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_COMMON_SIGNATURE_H_

#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gluon_syncbn {

/// The values on which all devices and processes of a round must agree.
struct Signature {
  std::int64_t channels = 0;
  std::string dtype;
  double eps = 0;
  std::optional<double> momentum;  ///< empty: average over all batches

  /// Returns the first difference, such as "channels 3 and 4", or nothing if there is none.
  std::optional<std::string> difference(const Signature& other) const;
};

}  // namespace gluon_syncbn

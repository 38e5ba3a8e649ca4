#ifndef GLUON_SYNCBN_NORM_PARTIAL_STATISTICS_H_
#define GLUON_SYNCBN_NORM_PARTIAL_STATISTICS_H_

#include <cstdint>
#include <vector>

namespace gluon_syncbn {

/// What devices and processes tell each other in a pass, Moments or GradientSums: two numbers for
/// every channel, the second ones behind the first of all channels.
struct PartialStatistics {
  std::int64_t count = 0;  ///< of Moments
  std::vector<double> values;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_NORM_PARTIAL_STATISTICS_H_

#ifndef GLUON_SYNCBN_DISTRIBUTED_MESSAGE_H_
#define GLUON_SYNCBN_DISTRIBUTED_MESSAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/signature.h"
#include "distributed/process_group.h"
#include "norm/moments.h"

namespace gluon_syncbn {

inline constexpr const char* kUnreadableMessage =
    "the message of another process cannot be read; all processes should run the same version of "
    "gluon_syncbn";

/// What one process tells the others in one exchange: the statistics of all its devices, or why
/// it has none, and what lets every process see whether they speak of the same thing.
struct ProcessMessage {
  std::uint64_t round = 0;
  std::uint64_t used_slots = 0;  ///< on this process; see ProcessLink
  Signature signature;
  PartialStatistics statistics;
  std::string text;  ///< why there are no statistics; in a roll call, what is waited for

  ProcessGroup::Words pack() const;

  /// Messages that were packed one by one and put behind each other. Throws Error where the words
  /// are something else.
  static std::vector<ProcessMessage> unpack(const ProcessGroup::Words& words);
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_DISTRIBUTED_MESSAGE_H_

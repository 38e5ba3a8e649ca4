#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/signature.h"
#include "distributed/process_group.h"
#include "norm/partial_statistics.h"

namespace gluon_syncbn {

inline constexpr const char* kUnreadableMessage =
    "the message of another process cannot be read; all processes should run the same version of "
    "gluon_syncbn";

/// The message of one process in one exchange: the merged statistics of its devices, or an error.
/// The round and the signature let every process check that all messages are of the same pass.
struct ProcessMessage {
  std::uint64_t round = 0;
  std::uint64_t used_slots = 0;  ///< on this process; see ProcessRounds
  Signature signature;
  PartialStatistics statistics;
  std::string text;  ///< the error, or ""

  ProcessGroup::Words pack() const;

  /// Unpacks messages that follow each other. Throws Error if the words are not messages.
  static std::vector<ProcessMessage> unpack(const ProcessGroup::Words& words);
};

}  // namespace gluon_syncbn

#ifndef GLUON_SYNCBN_DISTRIBUTED_PROCESS_LINK_H_
#define GLUON_SYNCBN_DISTRIBUTED_PROCESS_LINK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "distributed/process_group.h"

namespace gluon_syncbn {

/// Leads from one use of a layer to the same use on the other processes.
///
/// Messages meet by name. Names have to be the same on all processes, and should be few and come
/// back in every step, because the group remembers what it has agreed upon for a name. The forward
/// passes of all rounds need one name only: rounds of one layer follow each other. Backward passes
/// of several rounds may be under way at the same time, so that each round needs a slot of its own.
/// It gets it in the forward pass: every process says which slots are in use there, and all choose
/// the first that is free everywhere.
class ProcessLink : public std::enable_shared_from_this<ProcessLink> {
 public:
  ProcessLink(std::shared_ptr<ProcessGroup> group, std::string name)
      : group_(std::move(group)), name_(std::move(name)) {}

  /// The link that all who name it share until the process ends: it counts the rounds, and
  /// processes forget meetings at different times.
  static std::shared_ptr<ProcessLink> named(const std::shared_ptr<ProcessGroup>& group,
                                            const std::string& name);

  const std::string& name() const { return name_; }
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

  static constexpr std::size_t kSlots = 64;
  std::uint64_t used_slots() const;
  void take(std::size_t slot);
  void free(std::size_t slot);

  std::uint64_t next_round();

  /// Called when the message's turn has come; calls what it is given once, now or later.
  using Write = std::function<void(std::function<void(ProcessGroup::Words)>)>;
  struct PendingMessage {
    Write write;
    ProcessGroup::Then then;
  };
  /// Sends once no other message under `name` is under way. So messages go in the order of the
  /// calls, however long it takes to write them.
  void send(const std::string& name, PendingMessage message);

 private:
  void start(const std::string& name, const PendingMessage& message);
  void start_next(const std::string& name);

  const std::shared_ptr<ProcessGroup> group_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::uint64_t rounds_ = 0;
  std::uint64_t used_slots_ = 0;
  std::map<std::string, std::deque<PendingMessage>> behind_;  // what is under way, by name
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_DISTRIBUTED_PROCESS_LINK_H_

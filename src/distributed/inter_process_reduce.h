#ifndef GLUON_SYNCBN_DISTRIBUTED_INTER_PROCESS_REDUCE_H_
#define GLUON_SYNCBN_DISTRIBUTED_INTER_PROCESS_REDUCE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "distributed/message.h"
#include "distributed/process_group.h"
#include "distributed/process_link.h"
#include "norm/partial_statistics.h"
#include "norm/signature.h"

namespace gluon_syncbn {

/// One round of a layer towards the other processes.
class RoundLink {
 public:
  enum class Pass { kForward, kBackward };

  explicit RoundLink(std::shared_ptr<ProcessLink> link)
      : link_(std::move(link)), number_(link_->next_round()) {}
  ~RoundLink();
  RoundLink(const RoundLink&) = delete;
  RoundLink& operator=(const RoundLink&) = delete;

  /// What the devices of this process have agreed on; all processes should.
  void agree(const Signature& signature);

 private:
  friend class InterProcessReduce;

  ProcessMessage message(const PartialStatistics& statistics, const std::string& error) const;
  /// Nothing for a backward pass whose forward pass has not met the other processes.
  std::optional<std::string> name(Pass pass) const;
  void send(Pass pass, ProcessLink::PendingMessage message);
  /// Throws Error where the processes do not speak of the same round, or one has failed.
  std::vector<ProcessMessage> read(const ProcessGroup::Gathered& gathered) const;
  void take_slot(const std::vector<ProcessMessage>& messages);

  const std::shared_ptr<ProcessLink> link_;
  const std::uint64_t number_;
  mutable std::mutex mutex_;
  Signature signature_;
  std::optional<std::string> slot_name_;
  std::optional<std::size_t> slot_;
};

/// Brings the partial statistics of one pass to the other processes, and theirs back.
class InterProcessReduce {
 public:
  /// Calls what it is given once, now or later, with the partial statistics of this process or
  /// with what went wrong.
  using Bring = std::function<void(
      const std::function<void(const PartialStatistics&, const std::string& error)>&)>;
  /// Gets those of all processes in their order, or what went wrong.
  using Then = std::function<void(const std::vector<PartialStatistics>&, const std::string& error)>;

  InterProcessReduce(std::shared_ptr<RoundLink> round, RoundLink::Pass pass)
      : round_(std::move(round)), pass_(pass) {}

  /// Calls `then` now or later, from any thread: with the answer, and if something went wrong here,
  /// with that before. Does not throw.
  void reduce(Bring bring, const Then& then);
  /// Tells the other processes that this one will bring nothing, and why.
  void cancel(const std::string& error);
  /// Who waits for whom, in whole sentences, for a message.
  std::string describe() const;

 private:
  const std::shared_ptr<RoundLink> round_;
  const RoundLink::Pass pass_;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_DISTRIBUTED_INTER_PROCESS_REDUCE_H_

#ifndef GLUON_SYNCBN_DISTRIBUTED_ROUND_LINK_H_
#define GLUON_SYNCBN_DISTRIBUTED_ROUND_LINK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "distributed/message.h"
#include "distributed/process_link.h"
#include "norm/backend.h"
#include "norm/signature.h"

namespace gluon_syncbn {

/// One round of a layer towards the other processes: brings them the partial statistics of this
/// one, and theirs back.
class RoundLink : public std::enable_shared_from_this<RoundLink> {
 public:
  explicit RoundLink(std::shared_ptr<ProcessLink> link)
      : link_(std::move(link)), number_(link_->next_round()) {}
  ~RoundLink();
  RoundLink(const RoundLink&) = delete;
  RoundLink& operator=(const RoundLink&) = delete;

  /// The devices of this process have agreed on it; all processes should.
  void agree(const Signature& signature);

  /// Calls its argument once, now or later, with the partial statistics of this process or with
  /// what went wrong.
  using Gather = std::function<void(DevicePass::Then)>;
  /// Gets the partial statistics of all processes in their order, or what went wrong.
  using Then = std::function<void(const std::vector<PartialStatistics>&, const std::string& error)>;

  /// Calls `then` now or later, from any thread: with the answer and, if something went wrong here,
  /// with that before. Does not throw.
  void exchange(Direction direction, const Gather& gather, const Then& then);
  /// Tells the other processes that this one will bring nothing, and why.
  void cancel(Direction direction, const std::string& error);
  /// Who waits for whom, in whole sentences, for a message.
  std::string describe(Direction direction) const;

 private:
  ProcessGroup::Words message(const PartialStatistics& statistics, const std::string& error) const;
  /// Nothing for a backward pass whose forward pass has not met the other processes.
  std::optional<std::string> name(Direction direction) const;
  void send(Direction direction, ProcessLink::Write write, ProcessGroup::Then then);
  /// Throws Error if the processes do not speak of the same round, or one has failed.
  std::vector<PartialStatistics> read(Direction direction, const ProcessGroup::Gathered& gathered);
  void take_slot(const std::vector<ProcessMessage>& messages);

  const std::shared_ptr<ProcessLink> link_;
  const std::uint64_t number_;
  mutable std::mutex mutex_;
  Signature signature_;
  std::optional<std::string> slot_name_;
  std::optional<std::size_t> slot_;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_DISTRIBUTED_ROUND_LINK_H_

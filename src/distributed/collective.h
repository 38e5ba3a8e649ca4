#ifndef GLUON_SYNCBN_DISTRIBUTED_COLLECTIVE_H_
#define GLUON_SYNCBN_DISTRIBUTED_COLLECTIVE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "distributed/crossing.h"
#include "distributed/message.h"
#include "distributed/process_group.h"
#include "norm/moments.h"
#include "norm/signature.h"

namespace gluon_syncbn {

/// The way from one use of a layer to the same use on the other processes.
///
/// Messages meet by name. Names have to be the same on all processes, and should be few and come
/// back in every step, because the group remembers what it has agreed upon for a name. A round's
/// forward needs one name only: rounds of one layer follow each other. Backward passes of several
/// rounds may be under way at the same time, so that each round needs a place of its own, and the
/// forward exchange gives it: every process says which places are taken there, and all choose the
/// first that is free everywhere.
class Channel : public std::enable_shared_from_this<Channel> {
 public:
  Channel(std::shared_ptr<ProcessGroup> group, std::string name)
      : group_(std::move(group)), name_(std::move(name)) {}

  /// The channel that all who name it share until the process ends: it counts the rounds, and
  /// processes forget meetings at different times.
  static std::shared_ptr<Channel> named(const std::shared_ptr<ProcessGroup>& group,
                                        const std::string& name);

  const std::string& name() const { return name_; }
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

 private:
  friend class RoundCrossings;
  static constexpr std::size_t kPlaces = 64;

  std::uint64_t next_round();
  std::uint64_t taken() const;
  void take(std::size_t place);
  void free(std::size_t place);

  /// `write` is called when the letter's turn has come, and calls what it is given once, now or
  /// later.
  struct Letter {
    std::function<void(std::function<void(ProcessGroup::Words)>)> write;
    ProcessGroup::Then then;
  };
  /// Sends once no other message under `name` is under way. So messages go in the order of the
  /// calls, however long it takes to write them.
  void send(const std::string& name, Letter letter);
  void start(const std::string& name, const Letter& letter);
  void start_next(const std::string& name);

  const std::shared_ptr<ProcessGroup> group_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::uint64_t rounds_ = 0;
  std::uint64_t taken_ = 0;
  std::map<std::string, std::deque<Letter>> behind_;  // what is under way, by name
};

/// The crossings of one round.
class RoundCrossings : public std::enable_shared_from_this<RoundCrossings> {
 public:
  explicit RoundCrossings(std::shared_ptr<Channel> channel)
      : channel_(std::move(channel)), number_(channel_->next_round()) {}
  ~RoundCrossings();
  RoundCrossings(const RoundCrossings&) = delete;
  RoundCrossings& operator=(const RoundCrossings&) = delete;

  /// What the devices of this process have agreed on; all processes should.
  void agree(const Agreement& agreement);

  std::shared_ptr<Crossing<Moments>> forward();
  std::shared_ptr<Crossing<GradientSums>> backward();

 private:
  template <class Part>
  class Way;
  enum class Pass { kForward, kBackward };

  ProcessMessage message(const FlatPart& part, const std::string& error) const;
  /// Nothing for a backward pass whose forward exchange has not succeeded.
  std::optional<std::string> name(Pass pass) const;
  void send(Pass pass, Channel::Letter letter);
  /// Throws Error where the processes do not speak of the same round, or one has failed.
  std::vector<ProcessMessage> read(const ProcessGroup::Gathered& gathered) const;
  void take_place(const std::vector<ProcessMessage>& messages);

  const std::shared_ptr<Channel> channel_;
  const std::uint64_t number_;
  mutable std::mutex mutex_;
  Agreement agreement_;
  std::optional<std::string> place_;
  std::optional<std::size_t> taken_;
};

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_DISTRIBUTED_COLLECTIVE_H_

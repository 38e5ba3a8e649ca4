#include "distributed/collective.h"

#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "common/enforce.h"
#include "common/error.h"
#include "common/per_process.h"
#include "distributed/bring_home.h"

namespace gluon_syncbn {
namespace {

class NamedChannels {
 public:
  static NamedChannels& instance() { return PerProcess<NamedChannels>::instance(); }

  std::shared_ptr<Channel> find_or_create(const std::shared_ptr<ProcessGroup>& group,
                                          const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& channel = channels_[{group->id(), name}];
    if (!channel || channel->group() != group) channel = std::make_shared<Channel>(group, name);
    return channel;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, std::string>, std::shared_ptr<Channel>> channels_;
};

}  // namespace

std::shared_ptr<Channel> Channel::named(const std::shared_ptr<ProcessGroup>& group,
                                        const std::string& name) {
  return NamedChannels::instance().find_or_create(group, name);
}

std::uint64_t Channel::next_round() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return rounds_++;
}

std::uint64_t Channel::taken() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return taken_;
}

void Channel::take(std::size_t place) {
  const std::lock_guard<std::mutex> lock(mutex_);
  taken_ |= std::uint64_t{1} << place;
}

void Channel::free(std::size_t place) {
  const std::lock_guard<std::mutex> lock(mutex_);
  taken_ &= ~(std::uint64_t{1} << place);
}

void Channel::send(const std::string& name, Letter letter) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [line, is_first] = behind_.try_emplace(name);
    if (!is_first) {
      line->second.push_back(std::move(letter));
      return;
    }
  }
  start(name, letter);
}

void Channel::start(const std::string& name, const Letter& letter) {
  const auto arrived = [self = shared_from_this(), name,
                        then = letter.then](const ProcessGroup::Gathered& gathered) {
    // First, because the next message tells which places are taken.
    then(gathered);
    self->start_next(name);
  };
  letter.write([group = group_, name, arrived](ProcessGroup::Words message) {
    group->gather(name, std::move(message), arrived);
  });
}

void Channel::start_next(const std::string& name) {
  std::optional<Letter> next;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto line = behind_.find(name);
    GLUON_SYNCBN_ENFORCE(line != behind_.end(), "no message under the name " + name);
    if (line->second.empty()) {
      behind_.erase(line);
      return;
    }
    next = std::move(line->second.front());
    line->second.pop_front();
  }
  start(name, *next);
}

template <class Part>
class RoundCrossings::Way : public Crossing<Part> {
 public:
  Way(std::shared_ptr<RoundCrossings> round, Pass pass) : round_(std::move(round)), pass_(pass) {}

  void cross(std::shared_ptr<const Part> own, typename Crossing<Part>::Then then) override {
    const auto tell = [then = std::move(then), told = std::make_shared<std::atomic<bool>>(false)](
                          const Outcome<Part>& outcome) {
      if (!told->exchange(true)) then(outcome);
    };
    const auto write = [round = round_, own, tell](const auto& ready) {
      bring_home(*own, [round, tell, ready](const FlatPart& part, const std::string& error) {
        // The answer would say so too, but the other processes may be long in coming.
        if (!error.empty()) tell({nullptr, error});
        ready(round->message(part, error).pack());
      });
    };
    const auto arrived = [round = round_, pass = pass_, remote = own->remote,
                          tell](const ProcessGroup::Gathered& gathered) {
      Outcome<Part> outcome;
      try {
        const auto messages = round->read(gathered);
        if (pass == Pass::kForward) round->take_place(messages);
        // One at a time: the parts of hundreds of processes would leave the processor's caches.
        Part merged = Part::of(messages.front().part);
        for (std::size_t i = 1; i < messages.size(); ++i) {
          const Part next = Part::of(messages[i].part);
          merged = Part::merge({&merged, &next});
        }
        outcome.merged = std::make_shared<const Part>(send_out(merged, remote));
      } catch (const std::exception& error) {
        outcome.error = error.what();
      }
      tell(outcome);
    };
    round_->send(pass_, {write, arrived});
  }

  void cancel(const std::string& error) override {
    round_->send(pass_, {[round = round_, error](const auto& ready) {
                           ready(round->message({}, error).pack());
                         },
                         [](const ProcessGroup::Gathered&) {}});
  }

  std::string describe() const override {
    const ProcessGroup& group = *round_->channel_->group();
    return "All devices of this process came; it is " + group.describe() + ". " +
           group.missing(round_->name(pass_).value_or("")) +
           " Usual causes: a process has ended, or waits for something else; a process got no data "
           "this step; a branch that calls the layer was taken on some processes only; the "
           "networks of the processes differ, or were made or called in another order.";
  }

 private:
  const std::shared_ptr<RoundCrossings> round_;
  const Pass pass_;
};

RoundCrossings::~RoundCrossings() {
  if (taken_) channel_->free(*taken_);
}

void RoundCrossings::agree(const Agreement& agreement) {
  const std::lock_guard<std::mutex> lock(mutex_);
  agreement_ = agreement;
}

std::shared_ptr<Crossing<Moments>> RoundCrossings::forward() {
  return std::make_shared<Way<Moments>>(shared_from_this(), Pass::kForward);
}

std::shared_ptr<Crossing<GradientSums>> RoundCrossings::backward() {
  return std::make_shared<Way<GradientSums>>(shared_from_this(), Pass::kBackward);
}

ProcessMessage RoundCrossings::message(const FlatPart& part, const std::string& error) const {
  ProcessMessage message;
  message.part = part;
  message.text = error;
  message.round = number_;
  message.taken = channel_->taken();
  const std::lock_guard<std::mutex> lock(mutex_);
  message.agreement = agreement_;
  return message;
}

std::optional<std::string> RoundCrossings::name(Pass pass) const {
  if (pass == Pass::kForward) return channel_->name() + ".forward";
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!place_) return std::nullopt;
  return channel_->name() + ".backward" + *place_;
}

void RoundCrossings::send(Pass pass, Channel::Letter letter) {
  const auto name = this->name(pass);
  if (!name) return letter.then({{}, "its forward pass has not met the other processes"});
  channel_->send(*name, std::move(letter));
}

std::vector<ProcessMessage> RoundCrossings::read(const ProcessGroup::Gathered& gathered) const {
  if (!gathered.error.empty()) {
    throw Error("the exchange with other processes has failed: " + gathered.error);
  }
  auto messages = ProcessMessage::unpack(gathered.words);
  if (messages.size() != static_cast<std::size_t>(channel_->group()->size())) {
    throw Error(
        "the message of another process cannot be read; all processes should run the same "
        "version of gluon_syncbn");
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].text.empty()) {
      throw Error("failed on process " + std::to_string(i) + ": " + messages[i].text);
    }
  }
  const ProcessMessage& first = messages.front();
  for (std::size_t i = 1; i < messages.size(); ++i) {
    const std::string which = "processes 0 and " + std::to_string(i) + " differ: ";
    if (messages[i].round != first.round) {
      throw Error(which + "round " + std::to_string(first.round) + " and " +
                  std::to_string(messages[i].round) +
                  "; all processes should call the layer equally often in training");
    }
    if (const auto difference = first.agreement.difference(messages[i].agreement)) {
      throw Error(which + *difference);
    }
  }
  return messages;
}

void RoundCrossings::take_place(const std::vector<ProcessMessage>& messages) {
  std::uint64_t taken = 0;
  for (const ProcessMessage& message : messages) taken |= message.taken;
  std::size_t place = 0;
  while (place < Channel::kPlaces && (taken >> place & 1) != 0) ++place;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (place < Channel::kPlaces) {
    channel_->take(place);
    taken_ = place;
    place_ = std::to_string(place);
  } else {
    // More rounds await backward than there are places: a name for this round alone.
    place_ = "-of-" + std::to_string(number_);
  }
}

}  // namespace gluon_syncbn

#include "distributed/process_link.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/enforce.h"
#include "common/per_process.h"

namespace gluon_syncbn {
namespace {

struct Links {
  std::mutex mutex;
  std::map<std::pair<int, std::string>, std::shared_ptr<ProcessLink>> named;
};

}  // namespace

std::shared_ptr<ProcessLink> ProcessLink::named(const std::shared_ptr<ProcessGroup>& group,
                                                const std::string& name) {
  auto& links = PerProcess<Links>::instance();
  const std::lock_guard<std::mutex> lock(links.mutex);
  auto& link = links.named[{group->id(), name}];
  if (!link || link->group() != group) link = std::make_shared<ProcessLink>(group, name);
  return link;
}

std::uint64_t ProcessLink::next_round() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return rounds_++;
}

std::uint64_t ProcessLink::used_slots() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return used_slots_;
}

void ProcessLink::take(std::size_t slot) {
  const std::lock_guard<std::mutex> lock(mutex_);
  used_slots_ |= std::uint64_t{1} << slot;
}

void ProcessLink::free(std::size_t slot) {
  const std::lock_guard<std::mutex> lock(mutex_);
  used_slots_ &= ~(std::uint64_t{1} << slot);
}

void ProcessLink::send(const std::string& name, PendingMessage message) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [line, is_first] = behind_.try_emplace(name);
    if (!is_first) {
      line->second.push_back(std::move(message));
      return;
    }
  }
  start(name, message);
}

void ProcessLink::start(const std::string& name, const PendingMessage& message) {
  const auto arrived = [self = shared_from_this(), name,
                        then = message.then](const ProcessGroup::Gathered& gathered) {
    // First, because the next message tells which slots are in use.
    then(gathered);
    self->start_next(name);
  };
  message.write([group = group_, name, arrived](ProcessGroup::Words words) {
    group->gather(name, std::move(words), arrived);
  });
}

void ProcessLink::start_next(const std::string& name) {
  std::optional<PendingMessage> next;
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

}  // namespace gluon_syncbn

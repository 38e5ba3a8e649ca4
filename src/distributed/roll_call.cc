#include "distributed/roll_call.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "common/enforce.h"
#include "common/error.h"
#include "distributed/message.h"

namespace gluon_syncbn {
namespace {

constexpr const char* kName = "roll-call";
constexpr char kBetweenNames = '\n';
constexpr std::size_t kShownProcesses = 16;
constexpr std::size_t kShownNames = 3;

// A share of the timeout: much longer than a roll call takes if all processes answer.
constexpr double kPatience = 0.5;

std::set<std::string> split(const std::string& text) {
  std::set<std::string> names;
  std::istringstream stream(text);
  for (std::string name; std::getline(stream, name, kBetweenNames);) names.insert(name);
  return names;
}

std::string waits_for(const std::set<std::string>& names) {
  if (names.empty()) return "waits for no other";
  std::string text = "waits in ";
  std::size_t shown = 0;
  for (const auto& name : names) {
    if (shown++ > 0) text += ", ";
    if (shown > kShownNames) return text + "...";
    text += name;
  }
  return text;
}

}  // namespace

void RollCall::begin() {
  if (const auto error = watch()) throw Error(*error);
}

std::optional<std::string> RollCall::watch() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ended_ ? std::nullopt : Watchdog::instance().watch(shared_from_this());
}

void RollCall::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ended_ = true;
  Watchdog::instance().unwatch(this);
}

void RollCall::gather(const std::string& name, Words message, OnGathered then) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    under_way_.insert(name);
  }
  group_->gather(
      name, std::move(message),
      [self = shared_from_this(), name, then = std::move(then)](const Gathered& gathered) {
        {
          const std::lock_guard<std::mutex> lock(self->mutex_);
          const auto found = self->under_way_.find(name);
          GLUON_SYNCBN_ENFORCE(found != self->under_way_.end(),
                               "no exchange under the name " + name);
          self->under_way_.erase(found);
        }
        self->watch();
        then(gathered);
      });
}

void RollCall::remind(Seconds, Seconds) { call(); }

void RollCall::give_up(Seconds) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // The roll call has no answer yet; answered() begins again.
    if (calling_) return Watchdog::instance().unwatch(this);
  }
  call();
}

void RollCall::fail(const std::string&) { end(); }

void RollCall::call() {
  ProcessMessage message;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (calling_ || ended_) return;
    calling_ = true;
    called_ = Clock::now();
    for (const auto& name : under_way_) message.text += name + kBetweenNames;
  }
  group_->gather(kName, message.pack(), [self = shared_from_this()](const Gathered& gathered) {
    self->answered(gathered);
  });
}

void RollCall::answered(const Gathered& gathered) {
  std::vector<std::set<std::string>> awaited;
  if (gathered.error.empty()) {
    try {
      for (const auto& message : ProcessMessage::unpack(gathered.words)) {
        awaited.push_back(split(message.text));
      }
    } catch (const Error&) {
      awaited.clear();  // Another version has sent the message, as the next exchange reports.
    }
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    calling_ = false;
    awaited_ = std::move(awaited);
  }
  // If the processes are no longer connected, the next exchange begins again.
  if (gathered.error.empty()) watch();
}

std::string RollCall::missing(const std::string& name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Seconds patience(kPatience * Watchdog::instance().timeout());
  if (calling_ && Clock::now() - called_ > patience) {
    return group_->missing(name) +
           " One of them does not even answer a roll call: it has ended or been stopped, has not "
           "called gluon_syncbn.init(), or has a longer timeout.";
  }
  const auto own = static_cast<std::size_t>(number());
  // The last roll call may be older than this exchange.
  if (own >= awaited_.size() || awaited_[own].count(name) == 0) return group_->missing(name);
  std::vector<std::string> lacking;
  for (std::size_t i = 0; i < awaited_.size(); ++i) {
    if (awaited_[i].count(name) > 0) continue;
    lacking.push_back("process " + std::to_string(i) + " (" + waits_for(awaited_[i]) + ")");
  }
  if (lacking.empty()) return group_->missing(name);
  std::string text = "Missing: ";
  for (std::size_t i = 0; i < std::min(lacking.size(), kShownProcesses); ++i) {
    text += (i > 0 ? ", " : "") + lacking[i];
  }
  if (lacking.size() > kShownProcesses) {
    text += " and " + std::to_string(lacking.size() - kShownProcesses) + " more";
  }
  return text + ".";
}

}  // namespace gluon_syncbn

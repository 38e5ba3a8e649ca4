#include "sync/barrier.h"

#include <exception>
#include <tuple>

#include "common/error.h"
#include "common/per_process.h"
#include "common/report.h"
#include "common/weak_registry.h"
#include "sync/failed_steps.h"
#include "sync/met_rounds.h"
#include "sync/wait_messages.h"

namespace gluon_syncbn {
namespace {

constexpr int kNoProcesses = -1;
using Id = std::tuple<std::string, std::size_t, int>;  // key, number of devices, process group
using NamedBarriers = PerProcess<WeakRegistry<Id, Barrier>>;
using Lock = std::lock_guard<std::mutex>;

Passes all(const Barrier::Meeting& meeting) {
  Passes passes;
  for (const auto& [_, pass] : meeting.passes) passes.push_back(pass);
  return passes;
}

}  // namespace

std::shared_ptr<Barrier> Barrier::named(const std::string& layer, std::size_t num_devices,
                                        const Options& options) {
  const int processes = options.processes ? options.processes->group() : kNoProcesses;
  return NamedBarriers::instance().find_or_make({options.key, num_devices, processes}, [&] {
    return std::make_shared<Barrier>(layer, num_devices, options);
  });
}

std::vector<std::shared_ptr<Barrier>> Barrier::all_named() {
  return NamedBarriers::instance().held();
}

Barrier::~Barrier() { Watchdog::instance().unwatch(this); }

// The places of a device.

Calls::Epoch Barrier::announce(const Device& device) {
  const Lock lock(mutex_);
  return calls_.announce(device);
}

void Barrier::saw_inference(const Device& device) {
  const Lock lock(mutex_);
  calls_.saw_inference(device);
}

Barrier::Place Barrier::join(const Device& device, Calls::Epoch epoch) {
  Change change(this);
  if (calls_.is_one_too_many(device)) {
    throw Error(layer_ + " synchronizes " + device_list(calls_.members()) + " (" + options_.option +
                "=" + std::to_string(num_devices_) + ") and was called on " + device.name() +
                " as well. That number should be the number of devices in use. After you move a "
                "hybridized network to other contexts, call hybridize() again.");
  }
  const Calls::Joined joined = calls_.join(device, epoch);
  for (auto open = open_.lower_bound(joined.left_out);
       open != open_.end() && open->first < joined.round; ++open) {
    fail({open->second, open->second->forward},
         device.name() + " was left behind: it was not called in this round, and is in a later " +
             "one now",
         &change);
  }
  open_.erase(open_.begin(), open_.lower_bound({calls_.oldest_epoch(), 0}));
  const std::string repeated = calls_.repeated_by(joined.round);
  const auto round = enter(joined.round, repeated, &change);
  if (!repeated.empty()) throw Error(*round->forward->error);
  return {round, round->forward};
}

std::shared_ptr<Barrier::Round> Barrier::enter(const Calls::Key& key, const std::string& repeated,
                                               Change* change) {
  auto& open = open_[key];
  const bool is_new = !open;
  if (is_new) {
    const auto& processes = options_.processes;
    open.reset(new Round{key, rounds_++, processes ? processes->next_round() : nullptr});
  }
  const auto round = open;
  const bool is_full = ++round->forward->places == num_devices_;
  if (is_full) open_.erase(key);
  if (is_new && !repeated.empty()) fail({round, round->forward}, repeated, change);
  if (is_full && !repeated.empty()) FailedSteps::instance().release(shared_from_this());
  return round;
}

void Barrier::agree(const std::shared_ptr<Round>& round, const Device& device,
                    const Signature& signature) {
  Change change(this);
  if (!round->signature) round->signature = {device, signature};
  const auto& [first, expected] = *round->signature;
  auto difference = expected.difference(signature);
  if (first.type != device.type) {
    difference = "contexts " + first.type + " and " + device.type +
                 ", which cannot meet: use CPU contexts alone, or GPU contexts alone";
  }
  if (!difference) return;
  const std::string error =
      "devices " + first.name() + " and " + device.name() + " differ: " + *difference;
  fail_round(round, error, &change);
  throw Error(name_of({round, round->forward}) + ": " + error);
}

Barrier::Place Barrier::next_backward(const std::shared_ptr<Round>& round, const Device& device) {
  Change change(this);
  const std::size_t call = round->backward_calls[device]++;
  auto& open = round->backwards[call];
  const bool is_new = !open;
  if (is_new) open = std::make_shared<Meeting>(Direction::kBackward);
  const Place place{round, open};
  if (++open->places == num_devices_) round->backwards.erase(call);
  if (is_new && round->error) fail(place, *round->error, &change);
  return place;
}

// A meeting from its first pass to its end.

void Barrier::arrive(const Place& place, const Device& device, const PassPtr& pass) {
  Change change(this);
  Meeting& meeting = *place.meeting;
  if (meeting.error) {
    return change.then([pass, error = *meeting.error] { gluon_syncbn::fail(pass, error); });
  }
  if (meeting.state != State::kComing || meeting.passes.count(device) > 0) {
    const std::string error = device.name() + " came twice";
    fail(place, error, &change);
    const InternalError internal(name_of(place) + ": " + error, __FILE__, __LINE__);
    return change.then([pass, internal] { gluon_syncbn::fail(pass, internal.what()); });
  }
  meeting.passes[device] = pass;
  if (meeting.passes.size() == 1 && (num_devices_ > 1 || place.round->seat)) wait(place, &change);
  if (meeting.error || meeting.passes.size() < num_devices_) return;
  if (place.round->seat) {
    queue(place, &change);
  } else {
    meet(place, std::nullopt, &change);
  }
}

void Barrier::wait(const Place& place, Change* change) {
  place.meeting->since = Watchdog::Clock::now();
  waiting_[place.meeting.get()] = place;
  if (const auto error = Watchdog::instance().watch(shared_from_this())) {
    fail(place, *error, change);
  }
}

void Barrier::stop_waiting(const Place& place) {
  if (waiting_.erase(place.meeting.get()) > 0 && waiting_.empty()) {
    Watchdog::instance().unwatch(this);
  }
}

/// All devices of all processes have come.
void Barrier::meet(const Place& place, const std::optional<PartialStatistics>& merged,
                   Change* change) {
  Meeting& meeting = *place.meeting;
  if (meeting.direction == Direction::kForward && MetRounds::instance().is_counting()) {
    MetRounds::instance().add(layer_, device_list(meeting.passes), options_.key);
  }
  meeting.state = State::kOver;
  stop_waiting(place);
  change->then(
      [passes = all(meeting), merged] { passes.front()->backend->finish(passes, merged, ""); });
  meeting.passes.clear();
}

/// Without effect on a meeting that has ended. `absent` matters if devices have not come to
/// forward.
void Barrier::end(const Place& place, const std::string& error, Absent absent, Change* change) {
  Meeting& meeting = *place.meeting;
  if (meeting.error || meeting.state == State::kOver) return;
  meeting.error = error;
  stop_waiting(place);
  const bool are_coming = meeting.state == State::kComing;
  const bool are_absent = are_coming && meeting.direction == Direction::kForward;
  failed(*place.round, error, are_absent ? absent : Absent::kMayCome);
  if (are_coming && place.round->seat) {
    // Before the passes fail, because the next round of their devices would overtake this message.
    queue(place, change);
  } else if (are_coming) {
    meeting.state = State::kOver;
  }
  if (meeting.state != State::kSumming) fail_passes(&meeting, change);  // otherwise in summed()
}

void Barrier::failed(const Round& round, const std::string& error, Absent absent) {
  if (calls_.failed(round.key, error, absent)) FailedSteps::instance().keep(shared_from_this());
}

void Barrier::fail_passes(Meeting* meeting, Change* change) {
  change->then([passes = all(*meeting), error = *meeting->error] {
    for (const auto& pass : passes) gluon_syncbn::fail(pass, error);
  });
  meeting->passes.clear();
}

void Barrier::fail(const Place& place, const std::string& reason, Change* change) {
  end(place, name_of(place) + ": " + reason, Absent::kMayCome, change);
}

void Barrier::fail(const Place& place, const std::string& error) {
  Change change(this);
  fail(place, error, &change);
}

void Barrier::fail_round(const std::shared_ptr<Round>& round, const Device& device,
                         const std::string& reason) {
  Change change(this);
  fail_round(round, failed_on(device, reason), &change);
}

void Barrier::fail_round(const std::shared_ptr<Round>& round, const std::string& error,
                         Change* change) {
  if (round->forward->error) return;
  round->error = error;
  const Place forward{round, round->forward};
  if (round->forward->state == State::kOver) {
    failed(*round, name_of(forward) + ": " + error, Absent::kMayCome);
    // The devices of this process may call no backward pass, for which other processes wait.
    if (round->seat && round->backward_calls.empty()) {
      round->backwards[0] = std::make_shared<Meeting>(Direction::kBackward);
    }
  }
  fail(forward, error, change);
  for (const auto& [_, backward] : round->backwards) fail({round, backward}, error, change);
}

// Other processes: queue() -> sum() -> summed() -> answered(). A meeting may fail at any time.

void Barrier::queue(const Place& place, Change* change) {
  place.meeting->state = State::kQueued;
  place.meeting->since = Watchdog::Clock::now();
  place.meeting->was_reminded = false;
  const auto self = shared_from_this();
  change->then(options_.processes->queue(
      place.round->seat, place.meeting->direction,
      [self, place](const ProcessRounds::Send& send) { self->sum(place, send); },
      [self, place](const PartialStatistics& merged, const std::string& error) {
        self->answered(place, merged, error);
      }));
}

/// The message has its turn. A meeting that has failed before sends its error: its passes are
/// complete, and MXNet has freed their arrays. While passes sum, none may fail, for the same
/// reason.
void Barrier::sum(const Place& place, const ProcessRounds::Send& send) {
  Passes passes;
  {
    const Lock lock(mutex_);
    place.meeting->state = State::kSumming;
    passes = all(*place.meeting);
  }
  if (passes.empty()) return summed(place, passes, "", send);
  passes.front()->backend->sum(
      passes, [self = shared_from_this(), place, passes, send](const std::string& error) {
        self->summed(place, passes, error, send);
      });
}

void Barrier::summed(const Place& place, const Passes& passes, std::string error,
                     const ProcessRounds::Send& send) {
  Meeting& meeting = *place.meeting;
  ProcessMessage message;
  try {
    if (error.empty() && !passes.empty()) {
      message.statistics = merge(meeting.direction, parts_of(passes));
    }
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  Change change(this);
  message.text = meeting.error.value_or(error);
  if (!message.text.empty()) message.statistics = {};
  if (place.round->signature) message.signature = place.round->signature->second;
  if (meeting.error) fail_passes(&meeting, &change);  // has failed meanwhile
  meeting.state = State::kSent;
  if (!error.empty()) fail(place, error, &change);
  change.then([send, message] { send(message); });
}

void Barrier::answered(const Place& place, const PartialStatistics& merged,
                       const std::string& error) {
  Change change(this);
  if (!error.empty()) {
    fail(place, error, &change);
  } else if (!place.meeting->error) {
    meet(place, merged, &change);
  }
  place.meeting->state = State::kOver;
}

// Waits that are too long, and messages.

template <class Visit>
void Barrier::for_each_wait(Missing missing, Seconds least, const Visit& visit) {
  for (const auto& [_, place] : std::map(waiting_)) {
    const Meeting& meeting = *place.meeting;
    const bool misses_calls = meeting.state == State::kComing;
    const bool is_on_cpus = meeting.passes.begin()->first.type == "cpu";
    const bool is_meant = missing == Missing::kAnything ||
                          (misses_calls && (missing == Missing::kCalls || is_on_cpus));
    const Seconds waited = Watchdog::age_of(meeting.since);
    if (is_meant && waited >= least) visit(place, waited);
  }
}

bool Barrier::is_late(Seconds least) {
  const Lock lock(mutex_);
  bool is_late = false;
  for_each_wait(Missing::kAnything, least, [&](const Place&, Seconds) { is_late = true; });
  return is_late;
}

void Barrier::remind(Missing missing, Seconds least, Seconds limit, const ProgramState& program) {
  Change change(this);
  for_each_wait(missing, least, [&](const Place& place, Seconds waited) {
    if (std::exchange(place.meeting->was_reminded, true)) return;
    const Wait wait = wait_at(place);
    change.then([text = reminder(*this, wait, waited, limit, program)] { report(text); });
  });
}

void Barrier::end_waits(const Ending& ending) {
  Change change(this);
  for_each_wait(ending.missing, ending.least, [&](const Place& place, Seconds waited) {
    const Wait wait = wait_at(place);
    end(place, ending_error(*this, wait, waited, ending), ending.absent, &change);
  });
}

Wait Barrier::wait_at(const Place& place) const {
  const Meeting& meeting = *place.meeting;
  Wait wait{name_of(place), meeting.direction, {}, {}, calls_};
  for (const auto& [device, _] : meeting.passes) wait.present.insert(device);
  if (meeting.state != State::kComing) {
    wait.processes = options_.processes->describe(*place.round->seat, meeting.direction);
  }
  return wait;
}

std::string Barrier::name_of(const Place& place) const {
  return layer_ + " round " + std::to_string(place.round->number) +
         (place.meeting->direction == Direction::kForward ? " forward" : " backward");
}

std::string failed_on(const Device& device, const std::string& reason) {
  return "failed on " + device.name() + ": " + reason;
}

}  // namespace gluon_syncbn

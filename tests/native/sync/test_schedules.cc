#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/error.h"
#include "support/inbox.h"
#include "support/play.h"
#include "support/ranks.h"
#include "support/seeds.h"
#include "support/values.h"
#include "sync/barrier.h"

namespace gluon_syncbn::tests {
namespace {

/// What a rank does in a round, or in a backward pass of one.
enum class Act {
  kArrive,
  kFailThenArrive,
  kFailInstead,
  kArriveThenFail,  // too late, where all others have come
  kDisagree,        // in forward only
  kStayAway,        // this round and all later ones
};

/// One forward, and what follows from it, by one rank.
struct Visit {
  std::size_t group = 0;
  std::size_t round = 0;
  Act forward = Act::kArrive;
  std::vector<Act> backwards;
  std::uint32_t pause = 0;
};

struct Schedule {
  std::size_t ranks = 0;
  std::size_t groups = 0;
  std::size_t rounds = 0;
  std::size_t backwards = 0;
  /// Forward's continuations go backward; otherwise each rank does once all its forwards are over.
  bool backward_at_once = false;
  /// By rank, in the order of that rank. All rounds of a group come in their own order.
  std::vector<std::vector<Visit>> visits;
};

/// Draws schedules that depend on the seed alone.
class Scheduler {
 public:
  explicit Scheduler(std::uint32_t seed) : generator_(seed) {}

  std::uint32_t up_to(std::uint32_t limit) { return generator_() % (limit + 1); }
  bool chance(std::uint32_t percent) { return up_to(99) < percent; }

  template <class Range>
  void shuffle(Range& range) {
    for (std::size_t i = range.size(); i > 1; --i) {
      std::swap(range[i - 1], range[up_to(static_cast<std::uint32_t>(i - 1))]);
    }
  }

  Schedule draw(bool with_absence) {
    Schedule schedule;
    schedule.ranks = 2 + up_to(6);
    schedule.groups = 1 + up_to(3);
    schedule.rounds = 1 + up_to(2);
    schedule.backwards = up_to(2);
    schedule.backward_at_once = chance(50);
    // Some schedules run without failures; the fewer the ranks, the more each of them may fail.
    const std::uint32_t failures = chance(30) ? 0 : 12 / static_cast<std::uint32_t>(schedule.ranks);
    const bool same_order = chance(20);
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < schedule.groups * schedule.rounds; ++i) {
      order.push_back(i % schedule.groups);
    }
    for (std::size_t rank = 0; rank < schedule.ranks; ++rank) {
      if (!same_order) shuffle(order);
      schedule.visits.push_back(draw_visits(schedule, order, failures));
      if (with_absence && chance(25)) {
        auto& visits = schedule.visits.back();
        const std::size_t present = up_to(static_cast<std::uint32_t>(visits.size()));
        for (std::size_t i = present; i < visits.size(); ++i) visits[i].forward = Act::kStayAway;
      }
    }
    return schedule;
  }

 private:
  std::vector<Visit> draw_visits(const Schedule& schedule, const std::vector<std::size_t>& order,
                                 std::uint32_t failures) {
    std::vector<Visit> visits;
    std::vector<std::size_t> next_round(schedule.groups);
    for (const std::size_t group : order) {
      Visit visit;
      visit.group = group;
      visit.round = next_round[group]++;
      if (chance(failures)) visit.forward = static_cast<Act>(1 + up_to(3));
      for (std::size_t call = 0; call < schedule.backwards; ++call) {
        visit.backwards.push_back(chance(failures) ? static_cast<Act>(1 + up_to(2)) : Act::kArrive);
      }
      visit.pause = up_to(9);
      visits.push_back(std::move(visit));
    }
    return visits;
  }

  std::mt19937 generator_;
};

void pause(std::uint32_t kind) {
  if (kind == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  } else if (kind < 4) {
    std::this_thread::yield();
  }
}

/// Does what `act` says at an exchange; `delay` is the pause before a late failure.
void act_at(const At& exchange, Act act, const Device& device, const Part& part, const Then& then,
            std::uint32_t delay) {
  const std::string error = "injected by " + device.name();
  if (act == Act::kFailThenArrive || act == Act::kFailInstead) exchange.fail(error);
  if (act != Act::kFailInstead) arrive(exchange, device, part, then);
  if (act == Act::kArriveThenFail) {
    pause(delay);
    exchange.fail(error);
  }
}

/// Runs one schedule and keeps what every rank was given.
class Run {
 public:
  explicit Run(const Schedule& schedule) : schedule_(schedule), records_(schedule.ranks) {
    for (std::size_t i = 0; i < schedule.groups; ++i) {
      groups_.push_back(std::make_shared<Barrier>("layer " + std::to_string(i), schedule.ranks));
    }
    std::size_t rank = 0;
    for (auto& records : records_) {
      records.resize(schedule.groups * schedule.rounds);
      // The host has made all calls before the first of them comes.
      for (std::size_t i = 0; i < records.size(); ++i) {
        records[i].epoch = groups_[i / schedule.rounds]->announce(device_of(rank));
      }
      ++rank;
      for (Record& record : records) record.backwards.resize(schedule.backwards);
    }
  }

  void run_rank(std::size_t rank) {
    const std::vector<Visit>& visits = schedule_.visits[rank];
    for (const Visit& visit : visits) {
      if (visit.forward == Act::kStayAway) break;
      pause(visit.pause);
      forward(rank, visit);
    }
    for (const Visit& visit : visits) {
      if (!arrives(visit.forward)) continue;
      const auto call = record(rank, visit.group, visit.round).forward.wait();
      if (!schedule_.backward_at_once && call.outcome) backward(rank, visit);
    }
    for (const Visit& visit : visits) {
      const Record& kept = record(rank, visit.group, visit.round);
      if (!arrives(visit.forward) || !kept.forward.wait().outcome) continue;
      for (std::size_t call = 0; call < visit.backwards.size(); ++call) {
        if (arrives(visit.backwards[call])) kept.backwards[call].wait();
      }
    }
  }

  /// What has to hold however the ranks were scheduled. With `timeouts` any exchange may fail.
  void check(bool timeouts) const {
    for (std::size_t group = 0; group < schedule_.groups; ++group) {
      for (std::size_t round = 0; round < schedule_.rounds; ++round) {
        CAPTURE(group);
        CAPTURE(round);
        const bool met = check_exchange(
            group, round, timeouts, moments_of, [](const Visit& visit) { return visit.forward; },
            [](const Record& record) { return record.forward; });
        for (std::size_t call = 0; call < schedule_.backwards; ++call) {
          CAPTURE(call);
          if (met) {
            check_exchange(
                group, round, timeouts,
                [call](std::size_t rank, std::size_t, std::size_t) { return sums_of(rank, call); },
                [call](const Visit& visit) { return visit.backwards[call]; },
                [call](const Record& record) { return record.backwards[call]; });
          } else {
            for (std::size_t rank = 0; rank < schedule_.ranks; ++rank) {
              CHECK(record(rank, group, round).backwards[call].calls().empty());
            }
          }
        }
      }
    }
  }

 private:
  struct Record {
    Calls::Epoch epoch = 0;
    At round;
    Inbox forward;
    std::vector<Inbox> backwards;
  };

  static bool arrives(Act act) { return act != Act::kFailInstead && act != Act::kStayAway; }
  /// Whether nothing but an error can come of it.
  static bool must_fail(Act act) { return act != Act::kArrive && act != Act::kArriveThenFail; }

  static Part moments_of(std::size_t rank, std::size_t group, std::size_t round) {
    return some_moments(static_cast<std::uint32_t>(rank + 10 * group + 100 * round));
  }
  static Part sums_of(std::size_t rank, std::size_t call) {
    return some_sums(static_cast<std::uint32_t>(rank + 10 * call));
  }

  Record& record(std::size_t rank, std::size_t group, std::size_t round) {
    return records_[rank][group * schedule_.rounds + round];
  }
  const Record& record(std::size_t rank, std::size_t group, std::size_t round) const {
    return records_[rank][group * schedule_.rounds + round];
  }
  const Visit& visit_of(std::size_t rank, std::size_t group, std::size_t round) const {
    const std::vector<Visit>& visits = schedule_.visits[rank];
    return *std::find_if(visits.begin(), visits.end(), [&](const Visit& visit) {
      return visit.group == group && visit.round == round;
    });
  }

  void forward(std::size_t rank, const Visit& visit) {
    const Device device = device_of(rank);
    Record& kept = record(rank, visit.group, visit.round);
    kept.round = join(groups_[visit.group], device, kept.epoch);
    const bool disagrees = visit.forward == Act::kDisagree;
    try {
      const auto channels = static_cast<std::int64_t>(disagrees ? 10 + rank : 2);
      kept.round.agree(device, {channels, "float32", 1e-5, 0.9});
    } catch (const Error&) {
      // A rank that arrives all the same gets the error once more.
    }
    act_at(
        kept.round, visit.forward, device, moments_of(rank, visit.group, visit.round),
        [this, rank, &visit, then = kept.forward.then()](const Outcome& outcome) {
          if (schedule_.backward_at_once && outcome) backward(rank, visit);
          then(outcome);
        },
        visit.pause / 2);
  }

  void backward(std::size_t rank, const Visit& visit) {
    const Device device = device_of(rank);
    const Record& kept = record(rank, visit.group, visit.round);
    for (std::size_t call = 0; call < visit.backwards.size(); ++call) {
      act_at(kept.round.next_backward(device), visit.backwards[call], device, sums_of(rank, call),
             kept.backwards[call].then(), 1);
    }
  }

  /// Every rank that arrived was called once, all with the same outcome, and with the right one.
  /// True where they have met.
  template <class PartOf, class ActOf, class InboxOf>
  bool check_exchange(std::size_t group, std::size_t round, bool timeouts, const PartOf& part_of,
                      const ActOf& act_of, const InboxOf& inbox_of) const {
    std::optional<Outcome> first;
    std::map<Device, Part> parts;
    bool certain_error = false;
    bool certain_success = !timeouts;
    for (std::size_t rank = 0; rank < schedule_.ranks; ++rank) {
      const Act act = act_of(visit_of(rank, group, round));
      certain_error = certain_error || must_fail(act);
      certain_success = certain_success && act == Act::kArrive;
      parts[device_of(rank)] = part_of(rank, group, round);
      const auto calls = inbox_of(record(rank, group, round)).calls();
      CAPTURE(rank);
      REQUIRE(calls.size() == (arrives(act) ? 1 : 0));
      if (calls.empty()) continue;
      if (!first) first = calls[0].outcome;
      CHECK(calls[0].outcome.merged == first->merged);
      CHECK(calls[0].outcome.error == first->error);
    }
    if (!first) return false;
    if (certain_error) CHECK_FALSE(*first);
    if (certain_success) CHECK(*first);
    if (!*first) {
      CAPTURE(first->error);
      CHECK((contains(first->error, "injected by ") || contains(first->error, " differ: ") ||
             (timeouts && contains(first->error, " waited "))));
      return false;
    }
    std::vector<Part> sorted;
    for (const auto& entry : parts) sorted.push_back(entry.second);
    CHECK(same_bits(*first->merged, merge_all(sorted)));
    return true;
  }

  const Schedule& schedule_;
  std::vector<std::shared_ptr<Barrier>> groups_;
  std::vector<std::vector<Record>> records_;
};

void try_schedule(std::uint32_t seed, bool timeouts) {
  CAPTURE(seed);
  const Schedule schedule = Scheduler(seed).draw(timeouts);
  CAPTURE(schedule.ranks);
  Run run(schedule);
  run_ranks(schedule.ranks, [&](std::size_t rank) { run.run_rank(rank); });
  run.check(timeouts);
}

}  // namespace

namespace {

/// A training loop on one layer in which calls are left out, come late or fail. As a host does, it
/// makes all calls of a step before any of the next.
class Loop {
 public:
  Loop(std::uint32_t seed, std::size_t ranks)
      : random_(seed),
        all_(std::string("abcde").substr(0, ranks)),
        shuffles_(random_.chance(50)),
        is_static_(random_.chance(30)),
        play_(ranks) {}

  /// A step in which anything may happen. Returns whether it failed.
  bool faulty_step() {
    const char failing = random_.chance(40) ? any() : kNone;
    char absent = random_.chance(60) ? any() : kNone;
    bool broken_off = failing != kNone && random_.chance(30);  // by the failure
    // After a failure, a device that was left out can be told from one that is still to come only
    // where another one is called again before it.
    if (failing != kNone && (is_static_ || shuffles_ || absent == 'a')) absent = kNone;
    if (is_static_ || shuffles_) broken_off = false;
    std::string calls;
    for (const char device : order()) {
      if (device == absent) continue;
      calls += device;
      if (broken_off && device == failing) break;
    }
    const char late = !is_static_ && random_.chance(30) ? any() : kNone;
    return play(calls, failing, late).find(": layer ") != std::string::npos;
  }

  /// A step without faults: all devices have to meet, or to get the error of the step before.
  void sound_step(bool repeats) {
    const std::string outcome = play(order(), kNone, kNone);
    CAPTURE(outcome);
    CHECK(contains(outcome, repeats ? "an earlier step has failed" : ": met in "));
    CHECK(outcome.find(':') == 3 * all_.size() - 2);  // all are told this
  }

 private:
  static constexpr char kNone = '-';

  char any() { return all_[random_.up_to(static_cast<std::uint32_t>(all_.size() - 1))]; }
  std::string order() {
    std::string devices = all_;
    if (shuffles_) random_.shuffle(devices);
    return devices;
  }

  /// Devices come in any order. One of them may come after the timeout.
  std::string play(std::string devices, char failing, char late) {
    std::string acts;
    const auto act = [&](char device, const char* what) {
      acts += std::string{device} + " " + what + ", ";
    };
    for (const char device : devices) {
      if (!is_static_) act(device, "calls");
    }
    random_.shuffle(devices);
    const auto come = [&](char device) {
      act(device, device == failing ? "fails" : "comes");
      if (device == failing) act(device, "arrives");
    };
    for (const char device : devices) {
      if (device != late) come(device);
    }
    acts += "timeout, ";
    if (contains(devices, {late})) come(late);
    return play_.run(acts + "timeout");
  }

  Scheduler random_;
  const std::string all_;
  const bool shuffles_;   // the order of calls
  const bool is_static_;  // the time of a call is not known
  Play play_;
};

}  // namespace

// Sanitizers are slow, and find a race in every schedule that has it.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint32_t kShare = 3;
#else
constexpr std::uint32_t kShare = 1;
#endif

TEST_CASE("schedules: every rank gets one outcome per round, and all of a round get the same") {
  for (const std::uint32_t seed : seeds(0, 3000 / kShare)) try_schedule(seed, false);
}

TEST_CASE("schedules: the same with ranks that stay away and a watchdog that gives up") {
  const ScopedTimeout timeout(0.01);
  for (const std::uint32_t seed : seeds(10000, 500 / kShare)) try_schedule(seed, true);
}

TEST_CASE("schedules: whatever happened in a step, the next one without faults works") {
  for (const std::uint32_t seed : seeds(20000, 1000 / kShare)) {
    CAPTURE(seed);
    const std::size_t ranks = 2 + seed % 4;
    Loop loop(seed, ranks);
    for (int faults = 0; faults < 3; ++faults) {
      loop.sound_step(loop.faulty_step());
      loop.sound_step(false);
      loop.sound_step(false);
    }
  }
}

}  // namespace gluon_syncbn::tests

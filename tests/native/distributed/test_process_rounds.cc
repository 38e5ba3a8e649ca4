#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "distributed/message.h"
#include "distributed/process_rounds.h"
#include "support/inbox.h"
#include "support/ranks.h"
#include "support/values.h"
#include "support/wire.h"
#include "sync/barrier.h"
#include "sync/failed_steps.h"

namespace gluon_syncbn::tests {
namespace {

const Device kA{"cpu", 0};
const Device kB{"cpu", 1};
const Signature kSignature{2, "float32", 1e-5, 0.9};

Barrier::Options linked(const std::shared_ptr<ProcessGroup>& group) {
  Barrier::Options options;
  options.processes = std::make_shared<ProcessRounds>(group, "layer");
  return options;
}

/// One layer in one of several processes.
struct Process {
  Process(const std::shared_ptr<ProcessGroup>& group, std::size_t devices)
      : meeting(std::make_shared<Barrier>("layer", devices, linked(group))) {}
  Process(const std::shared_ptr<Wire>& wire, int number, std::size_t devices)
      : Process(std::make_shared<WiredGroup>(wire, number), devices) {}

  /// Joins the next round of `device`.
  At join(const Device& device = kA, const Signature& signature = kSignature) {
    const auto round = tests::join(meeting, device);
    round.agree(device, signature);
    return round;
  }
  /// Joins and comes to forward.
  At enter(const Part& part, const Inbox& inbox, const Device& device = kA,
           const Signature& signature = kSignature) {
    const auto round = join(device, signature);
    arrive(round, device, part, inbox.then());
    return round;
  }

  const std::shared_ptr<Barrier> meeting;
};

/// Two processes with one device each, of which messages that wait refer to the processes.
struct TwoProcesses {
  ~TwoProcesses() { wire->forget(); }

  const std::shared_ptr<Wire> wire = std::make_shared<Wire>(2);
  Process first{wire, 0, 1};
  Process second{wire, 1, 1};
  Inbox of_first;
  Inbox of_second;
};

/// Passes whose statistics are there when the test says so.
class LateBackend : public NumbersBackend {
 public:
  void sum(const Passes&, Done then) const override { waiting_ = std::move(then); }

  void summed(const std::string& error = "") const { std::exchange(waiting_, nullptr)(error); }

 private:
  mutable Done waiting_;
};

std::string error_in(const Inbox& inbox) {
  const auto call = inbox.wait();
  return call.outcome ? "no error" : call.outcome.error;
}

Part sums(double value) {
  return {Direction::kBackward, statistics_of(0, {value, -value}, {2 * value, value / 3})};
}

}  // namespace

TEST_CASE("a message is unpacked as it was packed, among others of other lengths") {
  ProcessMessage part;
  part.round = 7;
  part.used_slots = 0x8000000000000001u;
  part.signature = {2, "float16", 0x1.23456789abcdep-20, 1.0 / 3};
  part.statistics = some_moments(3).statistics;
  ProcessMessage failure;
  failure.text = "no data on this process: \xc3\xa4";
  auto words = part.pack();
  const auto more = failure.pack();
  words.insert(words.end(), more.begin(), more.end());

  const auto messages = ProcessMessage::unpack(words);
  REQUIRE(messages.size() == 2);
  CHECK(messages[0].round == 7);
  CHECK(messages[0].used_slots == part.used_slots);
  CHECK(messages[0].text.empty());
  CHECK_FALSE(messages[0].signature.difference(part.signature));
  CHECK(same_bits({Direction::kForward, messages[0].statistics}, some_moments(3)));
  CHECK(messages[1].text == failure.text);
  for (const std::size_t cut : {std::size_t{1}, more.size(), words.size() - 1}) {
    const ProcessGroup::Words broken(words.begin(), words.end() - static_cast<std::ptrdiff_t>(cut));
    if (cut == more.size()) {
      CHECK(ProcessMessage::unpack(broken).size() == 1);
    } else {
      CHECK_THROWS_AS(ProcessMessage::unpack(broken), Error);
    }
  }
}

TEST_CASE("a message with a number too few, or of other channels, is not read") {
  ProcessMessage part;
  part.statistics = some_moments(3).statistics;
  auto words = part.pack();
  --words.front();  // the number of values
  words.erase(words.end() - 1);
  CHECK_THROWS_WITH_AS(ProcessMessage::unpack(words), kUnreadableMessage, Error);

  const auto wire = std::make_shared<Wire>(2);
  Process process(wire, 0, 1);
  Inbox inbox;
  process.enter(some_moments(1), inbox);
  ProcessMessage other;
  other.signature = kSignature;
  other.statistics = statistics_of(1, {1, 2, 3}, {0, 0, 0});
  wire->put(1, "layer.forward", other.pack(), [](const ProcessGroup::Gathered&) {});
  CHECK(contains(error_in(inbox), kUnreadableMessage));
}

TEST_CASE("devices of all processes get the same bits, however they are spread") {
  struct Member {
    std::size_t process;
    Device device;
    Part moments;
    Part sums;
  };
  for (const std::size_t processes : {2, 3, 4}) {
    const auto wire = std::make_shared<Wire>(static_cast<int>(processes));
    std::vector<std::unique_ptr<Process>> all;
    std::vector<Member> members;
    std::vector<Part> of_processes;
    Part total = sums(0);
    for (std::size_t p = 0; p < processes; ++p) {
      std::vector<Part> parts;
      for (std::size_t d = 0; d <= p % 2; ++d) {
        parts.push_back(some_moments(static_cast<std::uint32_t>(10 * p + d)));
        members.push_back(
            {p, {"cpu", static_cast<int>(d)}, parts.back(), sums(1.0 + static_cast<double>(p))});
        total = merge_all({total, members.back().sums});
      }
      all.push_back(std::make_unique<Process>(wire, static_cast<int>(p), parts.size()));
      of_processes.push_back(merge_all(parts));
    }
    const Part expected = merge_all(of_processes);
    for (int step = 0; step < 3; ++step) {
      std::vector<Inbox> forward(members.size());
      std::vector<Inbox> backward(members.size());
      run_ranks(members.size(), [&](std::size_t i) {
        const Member& member = members[i];
        const auto round = all[member.process]->enter(member.moments, forward[i], member.device);
        forward[i].wait();
        arrive(round.next_backward(member.device), member.device, member.sums, backward[i].then());
        backward[i].wait();
      });
      for (std::size_t i = 0; i < members.size(); ++i) {
        CHECK(same_bits(*forward[i].wait().outcome.merged, expected));
        CHECK(forward[i].calls().size() == 1);
        const auto& merged = *backward[i].wait().outcome.merged;
        CHECK(same_bits(merged, *backward[0].wait().outcome.merged));
        for (std::size_t c = 0; c < 2; ++c) {
          CHECK(merged.statistics.dz()[c] ==
                doctest::Approx(total.statistics.dz()[c]).epsilon(1e-14));
          CHECK(merged.statistics.dz_centered()[c] ==
                doctest::Approx(total.statistics.dz_centered()[c]).epsilon(1e-14));
        }
      }
    }
    // Steps use the same names again.
    for (const auto& name : wire->names()) {
      CHECK((name == "layer.forward" || name == "layer.backward0"));
    }
  }
}

TEST_CASE_FIXTURE(TwoProcesses, "backward passes of several rounds may be under way in any order") {
  constexpr std::size_t kRounds = 70;  // more than there are places
  std::vector<At> rounds_of_first;
  std::vector<At> rounds_of_second;
  for (std::size_t r = 0; r < kRounds; ++r) {
    rounds_of_first.push_back(first.enter(some_moments(1), of_first));
    rounds_of_second.push_back(second.enter(some_moments(1), of_second));
  }
  std::vector<Inbox> inboxes(kRounds);
  for (std::size_t r = 0; r < kRounds; ++r) {
    arrive(rounds_of_first[r].next_backward(kA), kA, sums(static_cast<double>(r)),
           inboxes[r].then());
  }
  for (std::size_t r = kRounds; r-- > 0;) {
    arrive(rounds_of_second[r].next_backward(kA), kA, sums(static_cast<double>(r)), Inbox().then());
  }
  for (std::size_t r = 0; r < kRounds; ++r) {
    CHECK(inboxes[r].wait().outcome.merged->statistics.dz()[0] == 2.0 * static_cast<double>(r));
  }
}

TEST_CASE_FIXTURE(TwoProcesses, "rounds whose messages stand in line get different places") {
  std::vector<std::vector<At>> rounds(2);
  wire->hold();
  for (int i = 0; i < 2; ++i) {
    rounds[0].push_back(first.enter(some_moments(1), of_first));
    rounds[1].push_back(second.enter(some_moments(1), of_second));
  }
  wire->release();
  std::vector<Inbox> inboxes(4);
  // One process goes backward in the order of the rounds, the other in the reverse.
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t round = i < 2 ? i : 3 - i;
    arrive(rounds[i / 2][round].next_backward(kA), kA, sums(1.0 + static_cast<double>(round)),
           inboxes[i].then());
  }
  for (std::size_t i = 0; i < 4; ++i) {
    const auto outcome = inboxes[i].wait().outcome;
    REQUIRE_MESSAGE(outcome, outcome.error);
    CHECK(outcome.merged->statistics.dz()[0] ==
          2.0 * (1.0 + static_cast<double>(i < 2 ? i : 3 - i)));
  }
}

TEST_CASE_FIXTURE(TwoProcesses, "what a process brings late is sent in its turn") {
  std::vector<Inbox> inboxes(4);
  const LateBackend late;
  const auto pass = late.pass_of(some_moments(1), inboxes[0].then());
  first.join().arrive(kA, pass);
  const auto failing = tests::join(first.meeting, kA);
  failing.fail(kA, "no luck");  // before the first round's message is here
  failing.agree(kA, kSignature);
  arrive(failing, kA, some_moments(3), inboxes[1].then());
  second.enter(some_moments(2), inboxes[2]);
  second.enter(some_moments(3), inboxes[3]);
  CHECK(inboxes[0].calls().empty());
  CHECK(inboxes[2].calls().empty());
  SUBCASE("statistics") {
    late.summed();
    const Part expected = merge_all({some_moments(1), some_moments(2)});
    CHECK(same_bits(*inboxes[0].wait().outcome.merged, expected));
    CHECK(same_bits(*inboxes[2].wait().outcome.merged, expected));
  }
  SUBCASE("error") {
    late.summed("device lost");
    CHECK(error_in(inboxes[0]) == "layer round 0 forward: device lost");
    CHECK(error_in(inboxes[2]) == "layer round 0 forward: failed on process 0: device lost");
    CHECK(inboxes[0].calls().size() == 1);
  }
  CHECK(contains(error_in(inboxes[1]), "layer round 1 forward: failed on cpu(0): no luck"));
  CHECK(contains(error_in(inboxes[3]), "layer round 1 forward: failed on process 0: "));
}

TEST_CASE_FIXTURE(TwoProcesses,
                  "statistics that cannot be had are an error at once, also if others are late") {
  const LateBackend late;
  const auto pass = late.pass_of(some_moments(1), of_first.then());
  first.join().arrive(kA, pass);
  CHECK(wire->names().empty());
  late.summed("device lost");
  CHECK(wire->names().size() == 1);
  CHECK(error_in(of_first) == "layer round 0 forward: device lost");
}

TEST_CASE_FIXTURE(TwoProcesses, "a pass fails after its statistics have been merged, not before") {
  const LateBackend late;
  const auto pass = late.pass_of(some_moments(1), of_first.then());
  const auto round = first.join();
  round.arrive(kA, pass);
  round.fail("no luck");
  second.enter(some_moments(2), of_second);
  CHECK(of_first.calls().empty());
  CHECK(of_second.calls().empty());
  late.summed();
  CHECK(error_in(of_first) == "layer round 0 forward: no luck");
  CHECK(contains(error_in(of_second), "failed on process 0: layer round 0 forward: no luck"));
}

TEST_CASE_FIXTURE(TwoProcesses, "a name in use by one process is not taken on any") {
  auto of_process_0 = first.enter(some_moments(1), of_first);
  auto of_process_1 = second.enter(some_moments(2), of_second);
  SUBCASE("by process 0") { of_process_1 = {}; }
  SUBCASE("by process 1") { of_process_0 = {}; }
  const auto next = first.enter(some_moments(3), of_first);
  second.enter(some_moments(4), of_second);
  Inbox inbox;
  arrive(next.next_backward(kA), kA, sums(1), inbox.then());
  CHECK(wire->names().back() == "layer.backward1");
}

TEST_CASE_FIXTURE(TwoProcesses, "what differs between processes is named on all of them") {
  std::string words;
  SUBCASE("momentum") {
    words = "momentum 0.9";
    first.enter(some_moments(1), of_first);
    second.enter(some_moments(1), of_second, kA, {2, "float32", 1e-5, 0.25});
  }
  SUBCASE("round, instead of being paired wrongly") {
    words = "round 0 and 1";
    second.meeting->join(kA);  // a round that the other process does not have
    first.enter(some_moments(1), of_first);
    second.enter(some_moments(1), of_second);
  }
  CHECK(contains(error_in(of_first), "forward: processes 0 and 1 differ: " + words));
  CHECK(contains(error_in(of_second), "forward: processes 0 and 1 differ: " + words));
}

TEST_CASE("a group that answers twice disturbs no round") {
  struct Doubling : WiredGroup {
    using WiredGroup::WiredGroup;
    void gather(const std::string& name, Words message, OnGathered then) override {
      WiredGroup::gather(name, std::move(message), [then](const Gathered& gathered) {
        then(gathered);
        then(gathered);
      });
    }
  };
  Process alone(std::make_shared<Doubling>(std::make_shared<Wire>(1), 0), 1);
  for (std::uint32_t step = 0; step < 3; ++step) {
    Inbox inbox;
    alone.enter(some_moments(step), inbox);
    CHECK(same_bits(*inbox.wait().outcome.merged, some_moments(step)));
    CHECK(inbox.calls().size() == 1);
  }
}

TEST_CASE("a process that fails before its devices have met fails the others at once") {
  const auto wire = std::make_shared<Wire>(2);
  Process first(wire, 0, 1);
  Process second(wire, 1, 2);
  for (int step = 0; step < 2; ++step) {
    FailedSteps::instance().drop();
    Inbox of_first;
    Inbox of_second;
    first.enter(some_moments(1), of_first);
    second.enter(some_moments(1), of_second);
    tests::join(second.meeting, kB).fail(kB, "out of memory");
    CHECK(contains(error_in(of_first), "failed on process 1: "));
    CHECK(contains(error_in(of_first), "failed on cpu(1): out of memory"));
    CHECK(contains(error_in(of_second), "failed on cpu(1): out of memory"));
  }
}

TEST_CASE_FIXTURE(TwoProcesses, "a process that fails after forward fails the others in backward") {
  const auto failing = first.enter(some_moments(1), of_first);
  const auto waiting = second.enter(some_moments(1), of_second);
  REQUIRE(of_first.wait().outcome);
  failing.fail(kA, "device lost");  // and calls no backward pass
  Inbox backward;
  arrive(waiting.next_backward(kA), kA, sums(1), backward.then());
  REQUIRE(backward.calls().size() == 1);
  CHECK(contains(error_in(backward), "failed on process 0: layer round 0 backward: failed on "));
}

TEST_CASE_FIXTURE(TwoProcesses, "messages that wait when the processes start again get an error") {
  wire->hold();
  const std::vector<Inbox> before(2);
  for (const auto& inbox : before) first.enter(some_moments(1), inbox);
  second.enter(some_moments(1), of_second);
  const auto anew = std::make_shared<Wire>(2);
  const auto start_again = [&](const Process& process, int number) {
    process.meeting->options().processes->start_again(std::make_shared<WiredGroup>(anew, number));
  };
  start_again(first, 0);
  start_again(second, 1);
  CHECK(before[0].calls().empty());  // under way
  CHECK(contains(error_in(before[1]), "has begun anew with other processes"));
  FailedSteps::instance().drop();
  const std::vector<Inbox> after(2);
  first.enter(some_moments(2), after[0]);
  wire->release();  // late answers disturb nothing
  CHECK(before[0].wait().outcome);
  second.enter(some_moments(2), after[1]);
  for (const auto& inbox : after) CHECK(inbox.wait().outcome);
  anew->forget();
}

TEST_CASE("a process that does not come is reported after the timeout, and so are later rounds") {
  const ScopedTimeout timeout(0.1);
  const auto wire = std::make_shared<Wire>(2);
  Process here(wire, 0, 2);
  for (int step = 0; step < 2; ++step) {
    FailedSteps::instance().drop();
    Inbox of_a;
    Inbox of_b;
    here.enter(some_moments(1), of_a, kA);
    here.enter(some_moments(1), of_b, kB);
    const std::string error = error_in(of_a);
    CHECK(error == error_in(of_b));
    CHECK(contains(error, "layer round " + std::to_string(step) + " forward waited "));
    CHECK(contains(error,
                   "s for the other processes.\nAll devices of this process came; it is process 0. "
                   "Missing: who has no layer.forward.\nUsual causes: "));
  }
  CHECK(wire->names().size() == 1);  // the second message waits for the first
  wire->put(1, "layer.forward", {}, [](const ProcessGroup::Gathered&) {});  // too late
  CHECK(wire->names().size() == 3);
  // The arrays of the second round are gone, so its message is the error.
  std::vector<ProcessMessage> messages;
  wire->put(1, "layer.forward", {}, [&](const ProcessGroup::Gathered& gathered) {
    messages = ProcessMessage::unpack(gathered.words);
  });
  REQUIRE(messages.size() == 1);
  CHECK(contains(messages[0].text, "layer round 1 forward waited "));
  CHECK(messages[0].statistics.channels == 0);
  wire->forget();
}

}  // namespace gluon_syncbn::tests

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "distributed/message.h"
#include "distributed/round_link.h"
#include "support/inbox.h"
#include "support/ranks.h"
#include "support/values.h"
#include "support/wire.h"
#include "sync/sync_group.h"

namespace gluon_syncbn::tests {
namespace {

const Device kA{"cpu", 0};
const Device kB{"cpu", 1};
const Signature kSignature{2, "float32", 1e-5, 0.9};

/// A group whose exchanges never end.
class SilentGroup : public ProcessGroup {
 public:
  void gather(const std::string&, Words, Then then) override { kept_.push_back(std::move(then)); }
  int id() const override { return 0; }
  int size() const override { return 2; }
  std::string describe() const override { return "process 0 of 2"; }
  int number() const override { return 0; }
  std::string missing(const std::string& name) const override {
    return "Missing: who has no " + name + ".";
  }
  const std::vector<Then>& kept() const { return kept_; }
  /// They refer to the channel, and the channel to this group.
  void forget() { kept_.clear(); }

 private:
  std::vector<Then> kept_;
};

SyncGroup::Options linked(const std::shared_ptr<ProcessGroup>& group) {
  SyncGroup::Options options;
  options.link = std::make_shared<ProcessLink>(group, "layer");
  return options;
}

struct Process {
  Process(const std::shared_ptr<Wire>& wire, int number, std::size_t devices)
      : meeting("layer", devices, linked(std::make_shared<WiredGroup>(wire, number))) {}
  SyncGroup meeting;
};

/// A pass whose statistics are there when the test says so.
class LatePass : public NumbersPass<Moments> {
 public:
  using NumbersPass::NumbersPass;

  void gather(const DevicePasses& passes, Then then) override {
    merged_ = merged(passes).packed();
    waiting_ = std::move(then);
  }

  void arrive(const std::string& error = "") { std::exchange(waiting_, nullptr)(merged_, error); }

 private:
  PartialStatistics merged_;
  Then waiting_;
};

template <class Part>
std::string error_in(const Inbox<Part>& inbox) {
  const auto call = inbox.wait();
  return call.outcome ? "no error" : call.outcome.error;
}

GradientSums sums(double value) { return {{value, -value}, {2 * value, value / 3}}; }

}  // namespace

TEST_CASE("a message is unpacked as it was packed, among others of other lengths") {
  ProcessMessage part;
  part.round = 7;
  part.used_slots = 0x8000000000000001u;
  part.signature = {2, "float16", 0x1.23456789abcdep-20, 1.0 / 3};
  part.statistics = some_moments(3).packed();
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
  CHECK(same_bits(Moments::of(messages[0].statistics), some_moments(3)));
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

TEST_CASE("devices of all processes get the same bits, however they are spread") {
  for (const std::size_t processes : {2, 3, 4}) {
    const auto wire = std::make_shared<Wire>(static_cast<int>(processes));
    std::vector<std::unique_ptr<Process>> all;
    std::vector<Moments> locals;
    std::vector<std::size_t> devices;
    for (std::size_t p = 0; p < processes; ++p) {
      devices.push_back(1 + p % 2);
      all.push_back(std::make_unique<Process>(wire, static_cast<int>(p), devices.back()));
    }
    for (int step = 0; step < 3; ++step) {
      std::vector<Moments> merged_here;
      std::map<std::pair<std::size_t, int>, Inbox<Moments>> forward;
      std::map<std::pair<std::size_t, int>, Inbox<GradientSums>> backward;
      for (std::size_t p = 0; p < processes; ++p) {
        std::vector<Moments> parts;
        for (std::size_t d = 0; d < devices[p]; ++d) {
          parts.push_back(some_moments(static_cast<std::uint32_t>(10 * p + d)));
          forward[{p, static_cast<int>(d)}];
          backward[{p, static_cast<int>(d)}];
        }
        merged_here.push_back(merge_all(parts));
      }
      run_ranks(processes, [&](std::size_t p) {
        std::vector<std::shared_ptr<Round>> rounds;
        for (std::size_t d = 0; d < devices[p]; ++d) {
          const Device device{"cpu", static_cast<int>(d)};
          rounds.push_back(all[p]->meeting.join(device));
          rounds.back()->agree(device, kSignature);
          arrive(rounds.back()->forward(), device,
                 some_moments(static_cast<std::uint32_t>(10 * p + d)),
                 forward[{p, device.index}].then());
        }
        forward[{p, 0}].wait();
        for (std::size_t d = 0; d < devices[p]; ++d) {
          const Device device{"cpu", static_cast<int>(d)};
          arrive(*rounds[d]->next_backward(device), device, sums(1.0 + static_cast<double>(p)),
                 backward[{p, device.index}].then());
        }
        backward[{p, 0}].wait();
      });
      const Moments expected = merge_all(merged_here);
      GradientSums total = sums(0);
      for (std::size_t p = 0; p < processes; ++p) {
        for (std::size_t d = 0; d < devices[p]; ++d) {
          total = merge_all<GradientSums>({total, sums(1.0 + static_cast<double>(p))});
        }
      }
      for (const auto& [_, inbox] : forward) {
        CHECK(same_bits(*inbox.wait().outcome.merged, expected));
        CHECK(inbox.calls().size() == 1);
      }
      for (const auto& [_, inbox] : backward) {
        const auto& merged = *inbox.wait().outcome.merged;
        for (std::size_t c = 0; c < 2; ++c) {
          CHECK(merged.dy[c] == doctest::Approx(total.dy[c]).epsilon(1e-14));
          CHECK(merged.dy_centered[c] == doctest::Approx(total.dy_centered[c]).epsilon(1e-14));
        }
      }
    }
    // Steps use the same names again.
    for (const auto& name : wire->names()) {
      CHECK((name == "layer.forward" || name == "layer.backward0"));
    }
  }
}

TEST_CASE("backward passes of several rounds may be under way in any order") {
  const auto wire = std::make_shared<Wire>(2);
  Process first(wire, 0, 1);
  Process second(wire, 1, 1);
  constexpr std::size_t kRounds = 70;  // more than there are places
  std::vector<std::shared_ptr<Round>> of_first;
  std::vector<std::shared_ptr<Round>> of_second;
  for (std::size_t r = 0; r < kRounds; ++r) {
    for (auto* side : {&first, &second}) {
      const auto round = side->meeting.join(kA);
      round->agree(kA, kSignature);
      arrive(round->forward(), kA, some_moments(1), Inbox<Moments>().then());
      (side == &first ? of_first : of_second).push_back(round);
    }
  }
  std::vector<Inbox<GradientSums>> inboxes(kRounds);
  for (std::size_t r = 0; r < kRounds; ++r) {
    arrive(*of_first[r]->next_backward(kA), kA, sums(static_cast<double>(r)), inboxes[r].then());
  }
  for (std::size_t r = kRounds; r-- > 0;) {
    arrive(*of_second[r]->next_backward(kA), kA, sums(static_cast<double>(r)),
           Inbox<GradientSums>().then());
  }
  for (std::size_t r = 0; r < kRounds; ++r) {
    CHECK(inboxes[r].wait().outcome.merged->dy[0] == 2.0 * static_cast<double>(r));
  }
}

TEST_CASE("rounds whose messages stand in line get different places") {
  const auto wire = std::make_shared<Wire>(2);
  Process first(wire, 0, 1);
  Process second(wire, 1, 1);
  const std::vector<Process*> sides{&first, &second};
  std::vector<std::vector<std::shared_ptr<Round>>> rounds(2);
  wire->hold();
  for (std::size_t side = 0; side < 2; ++side) {
    for (int i = 0; i < 2; ++i) {
      const auto round = sides[side]->meeting.join(kA);
      round->agree(kA, kSignature);
      arrive(round->forward(), kA, some_moments(1), Inbox<Moments>().then());
      rounds[side].push_back(round);
    }
  }
  wire->release();
  std::vector<Inbox<GradientSums>> inboxes(4);
  for (const std::size_t r : {0, 1}) {
    arrive(*rounds[0][r]->next_backward(kA), kA, sums(1.0 + static_cast<double>(r)),
           inboxes[r].then());
  }
  for (const std::size_t r : {1, 0}) {
    arrive(*rounds[1][r]->next_backward(kA), kA, sums(1.0 + static_cast<double>(r)),
           inboxes[2 + r].then());
  }
  for (std::size_t i = 0; i < 4; ++i) {
    const auto outcome = inboxes[i].wait().outcome;
    REQUIRE_MESSAGE(outcome, outcome.error);
    CHECK(outcome.merged->dy[0] == 2.0 * (1.0 + static_cast<double>(i % 2)));
  }
}

TEST_CASE("what a process brings late is sent in its turn") {
  const auto wire = std::make_shared<Wire>(2);
  Process first(wire, 0, 1);
  Process second(wire, 1, 1);
  std::vector<Inbox<Moments>> inboxes(4);
  const auto late = std::make_shared<LatePass>(some_moments(1), inboxes[0].then());
  for (auto* side : {&first, &second}) {
    const std::size_t at = side == &first ? 0 : 2;
    auto round = side->meeting.join(kA);
    round->agree(kA, kSignature);
    if (side == &first) {
      round->forward().arrive(kA, late);
    } else {
      arrive(round->forward(), kA, some_moments(2), inboxes[at].then());
    }
    round = side->meeting.join(kA);
    if (side == &first) round->fail(kA, "no luck");  // before the first round's message is here
    round->agree(kA, kSignature);
    arrive(round->forward(), kA, some_moments(3), inboxes[at + 1].then());
  }
  CHECK(inboxes[0].calls().empty());
  CHECK(inboxes[2].calls().empty());
  SUBCASE("statistics") {
    late->arrive();
    const Moments expected = merge_all<Moments>({some_moments(1), some_moments(2)});
    CHECK(same_bits(*inboxes[0].wait().outcome.merged, expected));
    CHECK(same_bits(*inboxes[2].wait().outcome.merged, expected));
  }
  SUBCASE("error") {
    late->arrive("device lost");
    CHECK(error_in(inboxes[0]) == "layer round 0 forward: device lost");
    CHECK(error_in(inboxes[2]) == "layer round 0 forward: failed on process 0: device lost");
    CHECK(inboxes[0].calls().size() == 1);
  }
  CHECK(contains(error_in(inboxes[1]), "layer round 1 forward: failed on cpu(0): no luck"));
  CHECK(contains(error_in(inboxes[3]), "layer round 1 forward: failed on process 0: "));
}

TEST_CASE("statistics that cannot be had are an error at once, also if other processes are late") {
  const auto group = std::make_shared<SilentGroup>();
  SyncGroup meeting("layer", 1, linked(group));
  Inbox<Moments> inbox;
  const auto round = meeting.join(kA);
  round->agree(kA, kSignature);
  const auto late = std::make_shared<LatePass>(some_moments(1), inbox.then());
  round->forward().arrive(kA, late);
  CHECK(group->kept().empty());
  late->arrive("device lost");
  CHECK(group->kept().size() == 1);
  CHECK(error_in(inbox) == "layer round 0 forward: device lost");
  group->forget();
}

TEST_CASE("what differs between processes is named on all of them") {
  Signature other = kSignature;
  std::string words;
  SUBCASE("channels") { other.channels = 3, words = "processes 0 and 1 differ: channels 2 and 3"; }
  SUBCASE("dtype") { other.dtype = "float16", words = "dtype float32 and float16"; }
  SUBCASE("eps") { other.eps = 0.5, words = "eps 1.0000000000000001e-05 and 0.5"; }
  SUBCASE("momentum") { other.momentum = 0.25, words = "differ: momentum 0.9"; }
  const auto wire = std::make_shared<Wire>(2);
  Process first(wire, 0, 1);
  Process second(wire, 1, 1);
  Inbox<Moments> of_first;
  Inbox<Moments> of_second;
  for (auto* side : {&first, &second}) {
    const auto round = side->meeting.join(kA);
    round->agree(kA, side == &first ? kSignature : other);
    arrive(round->forward(), kA, some_moments(1), (side == &first ? of_first : of_second).then());
  }
  CHECK(contains(error_in(of_first), "layer round 0 forward: processes 0 and 1 differ: "));
  CHECK(contains(error_in(of_first), words));
  CHECK(error_in(of_first) == error_in(of_second));
}

TEST_CASE("processes that are out of step are told so, instead of being paired wrongly") {
  const auto wire = std::make_shared<Wire>(2);
  Process first(wire, 0, 1);
  Process second(wire, 1, 1);
  Inbox<Moments> of_first;
  Inbox<Moments> of_second;
  second.meeting.join(kA);  // a round that the other process does not have
  for (auto* side : {&first, &second}) {
    const auto round = side->meeting.join(kA);
    round->agree(kA, kSignature);
    arrive(round->forward(), kA, some_moments(1), (side == &first ? of_first : of_second).then());
  }
  CHECK(contains(error_in(of_first), "processes 0 and 1 differ: round 0 and 1"));
  CHECK(contains(error_in(of_second), "processes 0 and 1 differ: round 0 and 1"));
}

TEST_CASE("a process that fails before its devices have met fails the others at once") {
  const auto wire = std::make_shared<Wire>(2);
  Process first(wire, 0, 1);
  Process second(wire, 1, 2);
  for (int step = 0; step < 2; ++step) {
    Inbox<Moments> of_first;
    Inbox<Moments> of_second;
    const auto mine = first.meeting.join(kA);
    mine->agree(kA, kSignature);
    arrive(mine->forward(), kA, some_moments(1), of_first.then());
    const auto theirs = second.meeting.join(kA);
    theirs->agree(kA, kSignature);
    arrive(theirs->forward(), kA, some_moments(1), of_second.then());
    second.meeting.join(kB)->fail(kB, "out of memory");
    CHECK(contains(error_in(of_first), "failed on process 1: "));
    CHECK(contains(error_in(of_first), "failed on cpu(1): out of memory"));
    CHECK(contains(error_in(of_second), "failed on cpu(1): out of memory"));
  }
}

TEST_CASE("a process that does not come is reported after the timeout, and so are later rounds") {
  const ScopedTimeout timeout(0.1);
  const auto group = std::make_shared<SilentGroup>();
  SyncGroup meeting("layer", 2, linked(group));
  for (int step = 0; step < 2; ++step) {
    Inbox<Moments> of_a;
    Inbox<Moments> of_b;
    for (const auto& [device, inbox] : {std::pair{kA, &of_a}, std::pair{kB, &of_b}}) {
      const auto round = meeting.join(device);
      round->agree(device, kSignature);
      arrive(round->forward(), device, some_moments(1), inbox->then());
    }
    const std::string error = error_in(of_a);
    CHECK(error == error_in(of_b));
    CHECK(contains(error, "layer round " + std::to_string(step) + " forward waited 0.1"));
    CHECK(contains(error,
                   "s for the other processes. All devices of this process came; it is "
                   "process 0 of 2. Missing: who has no layer.forward. Usual causes: "));
  }
  // The second message waits in line behind the first.
  REQUIRE(group->kept().size() == 1);
  const auto first = group->kept().front();
  first({{}, "shut down"});  // too late for its round
  CHECK(group->kept().size() == 2);
  group->forget();
}

TEST_CASE("a failure of the group is reported") {
  const auto group = std::make_shared<SilentGroup>();
  SyncGroup meeting("layer", 1, linked(group));
  Inbox<Moments> inbox;
  const auto round = meeting.join(kA);
  round->agree(kA, kSignature);
  arrive(round->forward(), kA, some_moments(1), inbox.then());
  group->kept().front()({{}, "connection closed"});
  CHECK(error_in(inbox) ==
        "layer round 0 forward: the exchange with other processes has failed: connection closed");
  group->forget();
}

}  // namespace gluon_syncbn::tests

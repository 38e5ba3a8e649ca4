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
#include "distributed/bring_home.h"
#include "distributed/collective.h"
#include "distributed/message.h"
#include "support/ranks.h"
#include "support/values.h"
#include "support/wire.h"
#include "sync/sync_group.h"

namespace gluon_syncbn::tests {
namespace {

const Device kA{"cpu", 0};
const Device kB{"cpu", 1};
const Agreement kAgreement{2, "float32", 1e-5, 0.9};

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

struct Process {
  Process(const std::shared_ptr<Wire>& wire, int number, std::size_t devices)
      : meeting("layer", devices, "", "num_devices",
                std::make_shared<Channel>(std::make_shared<WiredGroup>(wire, number), "layer")) {}
  Meeting meeting;
};

/// A part that is fetched when the test says so.
class LatePart : public RemotePart {
 public:
  explicit LatePart(FlatPart part) : part_(std::move(part)) {}

  void fetch(Then then) const override { waiting_.push_back(std::move(then)); }
  std::shared_ptr<const RemotePart> with(const FlatPart& part) const override {
    return std::make_shared<const LatePart>(part);
  }
  const FlatPart& part() const { return part_; }

  void arrive(const std::string& error = "") {
    std::vector<Then> waiting;
    waiting.swap(waiting_);
    for (const auto& then : waiting) then(part_, error);
  }

 private:
  const FlatPart part_;
  mutable std::vector<Then> waiting_;
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
  part.taken = 0x8000000000000001u;
  part.agreement = {2, "float16", 0x1.23456789abcdep-20, 1.0 / 3};
  part.part = some_moments(3).flat();
  ProcessMessage failure;
  failure.text = "no data on this process: \xc3\xa4";
  auto words = part.pack();
  const auto more = failure.pack();
  words.insert(words.end(), more.begin(), more.end());

  const auto messages = ProcessMessage::unpack(words);
  REQUIRE(messages.size() == 2);
  CHECK(messages[0].round == 7);
  CHECK(messages[0].taken == part.taken);
  CHECK(messages[0].text.empty());
  CHECK_FALSE(messages[0].agreement.difference(part.agreement));
  CHECK(same_bits(Moments::of(messages[0].part), some_moments(3)));
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
          rounds.back()->agree(device, kAgreement);
          rounds.back()->forward().arrive(device,
                                          some_moments(static_cast<std::uint32_t>(10 * p + d)),
                                          forward[{p, device.index}].continuation());
        }
        forward[{p, 0}].wait();
        for (std::size_t d = 0; d < devices[p]; ++d) {
          const Device device{"cpu", static_cast<int>(d)};
          rounds[d]->next_backward(device)->arrive(device, sums(1.0 + static_cast<double>(p)),
                                                   backward[{p, device.index}].continuation());
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
      round->agree(kA, kAgreement);
      round->forward().arrive(kA, some_moments(1), Inbox<Moments>().continuation());
      (side == &first ? of_first : of_second).push_back(round);
    }
  }
  std::vector<Inbox<GradientSums>> inboxes(kRounds);
  for (std::size_t r = 0; r < kRounds; ++r) {
    of_first[r]->next_backward(kA)->arrive(kA, sums(static_cast<double>(r)),
                                           inboxes[r].continuation());
  }
  for (std::size_t r = kRounds; r-- > 0;) {
    of_second[r]->next_backward(kA)->arrive(kA, sums(static_cast<double>(r)),
                                            Inbox<GradientSums>().continuation());
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
      round->agree(kA, kAgreement);
      round->forward().arrive(kA, some_moments(1), Inbox<Moments>().continuation());
      rounds[side].push_back(round);
    }
  }
  wire->release();
  std::vector<Inbox<GradientSums>> inboxes(4);
  for (const std::size_t r : {0, 1}) {
    rounds[0][r]->next_backward(kA)->arrive(kA, sums(1.0 + static_cast<double>(r)),
                                            inboxes[r].continuation());
  }
  for (const std::size_t r : {1, 0}) {
    rounds[1][r]->next_backward(kA)->arrive(kA, sums(1.0 + static_cast<double>(r)),
                                            inboxes[2 + r].continuation());
  }
  for (std::size_t i = 0; i < 4; ++i) {
    const auto outcome = inboxes[i].wait().outcome;
    REQUIRE_MESSAGE(outcome, outcome.error);
    CHECK(outcome.merged->dy[0] == 2.0 * (1.0 + static_cast<double>(i % 2)));
  }
}

TEST_CASE("remote parts are merged in the order of devices, whichever comes first") {
  for (const bool reversed : {false, true}) {
    std::vector<std::shared_ptr<LatePart>> late;
    Moments part;
    std::vector<Moments> all;
    for (std::uint32_t i = 0; i < 3; ++i) {
      all.push_back(some_moments(i));
      late.push_back(std::make_shared<LatePart>(all.back().flat()));
      part.remote.push_back(late.back());
    }
    std::vector<FlatPart> came;
    bring_home(part, [&](const FlatPart& flat, const std::string& error) {
      CHECK(error.empty());
      came.push_back(flat);
    });
    if (reversed) std::reverse(late.begin(), late.end());
    for (const auto& each : late) {
      CHECK(came.empty());
      each->arrive();
    }
    REQUIRE(came.size() == 1);
    CHECK(same_bits(Moments::of(came.front()), merge_all(all)));
  }
}

TEST_CASE("what a process brings late is sent in its turn, and answered where it came from") {
  const auto wire = std::make_shared<Wire>(2);
  Process first(wire, 0, 1);
  Process second(wire, 1, 1);
  const auto late = std::make_shared<LatePart>(some_moments(1).flat());
  std::vector<Inbox<Moments>> inboxes(4);
  for (auto* side : {&first, &second}) {
    const std::size_t at = side == &first ? 0 : 2;
    auto round = side->meeting.join(kA);
    round->agree(kA, kAgreement);
    Moments part = some_moments(2);
    if (side == &first) {
      part = {};
      part.remote = {late};
    }
    round->forward().arrive(kA, part, inboxes[at].continuation());
    round = side->meeting.join(kA);
    if (side == &first) round->fail(kA, "no luck");  // before the part of the first round is here
    round->agree(kA, kAgreement);
    round->forward().arrive(kA, some_moments(3), inboxes[at + 1].continuation());
  }
  CHECK(inboxes[0].calls().empty());
  CHECK(inboxes[2].calls().empty());
  const Moments expected = merge_all<Moments>({some_moments(1), some_moments(2)});
  SUBCASE("part") {
    late->arrive();
    const auto remote = inboxes[0].wait().outcome.merged;
    REQUIRE(remote);
    CHECK(remote->count == expected.count);
    CHECK(remote->mean.empty());
    REQUIRE(remote->remote.size() == 1);
    const auto& answer = dynamic_cast<const LatePart&>(*remote->remote.front());
    CHECK(same_bits(Moments::of(answer.part()), expected));
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

TEST_CASE(
    "a part that does not come home is an error at once, also where other processes are late") {
  const auto group = std::make_shared<SilentGroup>();
  Meeting meeting("layer", 1, "", "num_devices", std::make_shared<Channel>(group, "layer"));
  Inbox<Moments> inbox;
  const auto round = meeting.join(kA);
  round->agree(kA, kAgreement);
  const auto late = std::make_shared<LatePart>(FlatPart{});
  Moments part;
  part.remote = {late};
  round->forward().arrive(kA, part, inbox.continuation());
  CHECK(group->kept().empty());
  late->arrive("device lost");
  CHECK(group->kept().size() == 1);
  CHECK(error_in(inbox) == "layer round 0 forward: device lost");
  group->forget();
}

TEST_CASE("what differs between processes is named on all of them") {
  Agreement other = kAgreement;
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
    round->agree(kA, side == &first ? kAgreement : other);
    round->forward().arrive(kA, some_moments(1),
                            (side == &first ? of_first : of_second).continuation());
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
    round->agree(kA, kAgreement);
    round->forward().arrive(kA, some_moments(1),
                            (side == &first ? of_first : of_second).continuation());
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
    mine->agree(kA, kAgreement);
    mine->forward().arrive(kA, some_moments(1), of_first.continuation());
    const auto theirs = second.meeting.join(kA);
    theirs->agree(kA, kAgreement);
    theirs->forward().arrive(kA, some_moments(1), of_second.continuation());
    second.meeting.join(kB)->fail(kB, "out of memory");
    CHECK(contains(error_in(of_first), "failed on process 1: "));
    CHECK(contains(error_in(of_first), "failed on cpu(1): out of memory"));
    CHECK(contains(error_in(of_second), "failed on cpu(1): out of memory"));
  }
}

TEST_CASE("a process that does not come is reported after the timeout, and so are later rounds") {
  const ScopedTimeout timeout(0.1);
  const auto group = std::make_shared<SilentGroup>();
  Meeting meeting("layer", 2, "", "num_devices", std::make_shared<Channel>(group, "layer"));
  for (int step = 0; step < 2; ++step) {
    Inbox<Moments> of_a;
    Inbox<Moments> of_b;
    for (const auto& [device, inbox] : {std::pair{kA, &of_a}, std::pair{kB, &of_b}}) {
      const auto round = meeting.join(device);
      round->agree(device, kAgreement);
      round->forward().arrive(device, some_moments(1), inbox->continuation());
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
  Meeting meeting("layer", 1, "", "num_devices", std::make_shared<Channel>(group, "layer"));
  Inbox<Moments> inbox;
  const auto round = meeting.join(kA);
  round->agree(kA, kAgreement);
  round->forward().arrive(kA, some_moments(1), inbox.continuation());
  group->kept().front()({{}, "connection closed"});
  CHECK(error_in(inbox) ==
        "layer round 0 forward: the exchange with other processes has failed: connection closed");
  group->forget();
}

}  // namespace gluon_syncbn::tests

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/device.h"
#include "common/watchdog.h"
#include "norm/moments.h"
#include "support/inbox.h"
#include "support/ranks.h"
#include "support/values.h"
#include "sync/reduction.h"

namespace gluon_syncbn::tests {
namespace {

std::shared_ptr<Membership> make_members(std::size_t ranks) {
  return std::make_shared<Membership>("layer 'a'", ranks, Membership::Options{});
}

std::shared_ptr<Reduction> make_reduction(std::size_t ranks) {
  return std::make_shared<Reduction>(make_members(ranks), 7, Direction::kForward);
}

/// The round that a device joins next which was never there.
std::uint64_t next_of_newcomer(Membership* members) {
  return members->next({"cpu", 99}, Membership::kJustMade).number;
}

/// What is written to std::cerr while it lives.
class CapturedErrors {
 public:
  CapturedErrors() : before_(std::cerr.rdbuf(stream_.rdbuf())) {}
  ~CapturedErrors() { std::cerr.rdbuf(before_); }
  CapturedErrors(const CapturedErrors&) = delete;
  CapturedErrors& operator=(const CapturedErrors&) = delete;

  std::string text() const { return stream_.str(); }

 private:
  std::ostringstream stream_;
  std::streambuf* const before_;
};

Moments part_of(std::size_t rank) { return some_moments(static_cast<std::uint32_t>(rank)); }

/// The parts of all ranks merged in the order of their devices.
Moments merged_by_device(std::size_t ranks) {
  std::map<Device, Moments> parts;
  for (std::size_t rank = 0; rank < ranks; ++rank) parts[device_of(rank)] = part_of(rank);
  std::vector<Moments> sorted;
  for (const auto& entry : parts) sorted.push_back(entry.second);
  return merge_all(sorted);
}

}  // namespace

TEST_CASE("ranks: all run, all are joined, and the error of one is rethrown") {
  std::vector<int> ran(4);
  const auto run = [&](std::size_t rank) {
    ran[rank] = 1;
    if (rank == 2) throw std::runtime_error("rank 2");
  };
  CHECK_THROWS_WITH_AS(run_ranks(4, run), "rank 2", std::runtime_error);
  CHECK(std::accumulate(ran.begin(), ran.end(), 0) == 4);
}

TEST_CASE("reduction: every order of arrival gives every device the same bits, exactly once") {
  constexpr std::size_t kRanks = 4;
  const Moments expected = merged_by_device(kRanks);
  std::vector<std::size_t> order(kRanks);
  std::iota(order.begin(), order.end(), std::size_t{0});
  do {
    const auto reduction = make_reduction(kRanks);
    std::vector<Inbox<Moments>> inboxes(kRanks);
    for (std::size_t i = 0; i < kRanks; ++i) {
      for (const auto& inbox : inboxes) REQUIRE(inbox.calls().empty());
      arrive(*reduction, device_of(order[i]), part_of(order[i]), inboxes[order[i]].then());
    }
    const auto& merged = inboxes[0].wait().outcome.merged;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      const auto calls = inboxes[rank].calls();
      REQUIRE(calls.size() == 1);
      REQUIRE(calls[0].outcome);
      CHECK(calls[0].outcome.merged == merged);
      CHECK(same_bits(*calls[0].outcome.merged, expected));
      CHECK(calls[0].outcome.error.empty());
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("reduction: devices on threads of their own meet") {
  for (std::size_t ranks = 1; ranks <= 8; ++ranks) {
    const Moments expected = merged_by_device(ranks);
    for (int repeat = 0; repeat < 20; ++repeat) {
      const auto reduction = make_reduction(ranks);
      std::vector<Inbox<Moments>> inboxes(ranks);
      std::vector<std::thread::id> threads(ranks);
      run_ranks(ranks, [&](std::size_t rank) {
        threads[rank] = std::this_thread::get_id();
        arrive(*reduction, device_of(rank), part_of(rank), inboxes[rank].then());
        inboxes[rank].wait();
      });
      std::size_t own = 0;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const auto calls = inboxes[rank].calls();
        REQUIRE(calls.size() == 1);
        REQUIRE(calls[0].outcome);
        CHECK(same_bits(*calls[0].outcome.merged, expected));
        own += calls[0].thread == threads[rank] ? 1 : 0;
        CHECK(calls[0].thread == inboxes[0].calls()[0].thread);
      }
      CHECK(own == 1);
    }
  }
}

TEST_CASE("reduction: whoever arrives last answers the others before itself") {
  const auto reduction = make_reduction(3);
  std::vector<std::size_t> answered;
  for (const std::size_t rank : {2, 0, 1}) {
    arrive(*reduction, device_of(rank), part_of(rank),
           [&answered, rank](const auto&) { answered.push_back(rank); });
  }
  REQUIRE(answered.size() == 3);
  CHECK(answered.back() == 1);
}

TEST_CASE("reduction: parts merge by device type and then by number, not by name") {
  const std::vector<Device> devices = {{"cpu", 2}, {"cpu", 3}, {"cpu", 10}, {"gpu", 1}};
  const auto reduction = make_reduction(4);
  std::vector<Moments> parts;
  Inbox<Moments> inbox;
  for (std::size_t i = 0; i < 4; ++i) parts.push_back(part_of(i));
  for (const std::size_t i : {3, 1, 0, 2}) {
    arrive(*reduction, devices[i], parts[i], inbox.then());
  }
  REQUIRE(inbox.wait().outcome);
  CHECK(same_bits(*inbox.wait().outcome.merged, merge_all(parts)));
  // By name cpu(10) would be the first.
  CHECK_FALSE(
      same_bits(merge_all<Moments>({parts[2], parts[0], parts[1], parts[3]}), merge_all(parts)));
}

TEST_CASE("reduction: fail reaches those who wait and those who come later") {
  const auto reduction = make_reduction(4);
  std::vector<Inbox<Moments>> inboxes(4);
  arrive(*reduction, device_of(0), part_of(0), inboxes[0].then());
  arrive(*reduction, device_of(1), part_of(1), inboxes[1].then());
  reduction->fail("first");
  reduction->fail("second");
  for (const std::size_t rank : {0, 1}) {
    REQUIRE(inboxes[rank].calls().size() == 1);
  }
  arrive(*reduction, device_of(2), part_of(2), inboxes[2].then());
  reduction->fail("third");
  arrive(*reduction, device_of(3), part_of(3), inboxes[3].then());
  for (const std::size_t rank : {2, 3}) {
    REQUIRE(inboxes[rank].calls().size() == 1);
  }
  for (const auto& inbox : inboxes) {
    CHECK(inbox.calls().size() == 1);
    CHECK_FALSE(inbox.calls()[0].outcome);
    CHECK(inbox.calls()[0].outcome.error == "layer 'a' round 7 forward: first");
  }
}

TEST_CASE("reduction: fail before anybody came, and with an empty message, is still a failure") {
  const auto reduction = make_reduction(2);
  reduction->fail("");
  for (const std::size_t rank : {0, 1}) {
    Inbox<Moments> inbox;
    arrive(*reduction, device_of(rank), part_of(rank), inbox.then());
    REQUIRE(inbox.calls().size() == 1);
    CHECK_FALSE(inbox.calls()[0].outcome);
  }
}

TEST_CASE("reduction: fail after all have met changes nothing") {
  const auto reduction = make_reduction(2);
  std::vector<Inbox<Moments>> inboxes(2);
  for (const std::size_t rank : {0, 1}) {
    arrive(*reduction, device_of(rank), part_of(rank), inboxes[rank].then());
  }
  reduction->fail("late");
  for (const auto& inbox : inboxes) {
    REQUIRE(inbox.calls().size() == 1);
    CHECK(inbox.calls()[0].outcome);
  }
}

TEST_CASE("reduction: a failure that races with the last arrival wins everywhere or nowhere") {
  for (int repeat = 0; repeat < 200; ++repeat) {
    const auto reduction = make_reduction(2);
    std::vector<Inbox<Moments>> inboxes(2);
    run_ranks(4, [&](std::size_t rank) {
      // Later in every repetition, so that it comes before, amid and after the arrivals.
      if (rank >= 2) {
        for (int i = 0; i < repeat % 20 * 20; ++i) std::this_thread::yield();
        reduction->fail("rank " + std::to_string(rank));
      } else {
        arrive(*reduction, device_of(rank), part_of(rank), inboxes[rank].then());
      }
    });
    REQUIRE(inboxes[0].calls().size() == 1);
    REQUIRE(inboxes[1].calls().size() == 1);
    CHECK(inboxes[0].wait().outcome.merged == inboxes[1].wait().outcome.merged);
    CHECK(inboxes[0].wait().outcome.error == inboxes[1].wait().outcome.error);
  }
}

TEST_CASE("reduction: continuations may own the reduction and call fail") {
  auto reduction = make_reduction(2);
  const std::weak_ptr<Reduction> observer = reduction;
  std::vector<Inbox<Moments>> inboxes(2);
  for (const std::size_t rank : {0, 1}) {
    arrive(*reduction, device_of(rank), part_of(rank),
           [owner = reduction, then = inboxes[rank].then()](const Outcome<Moments>& outcome) {
             owner->fail("from a continuation");
             then(outcome);
           });
  }
  reduction.reset();
  CHECK(observer.expired());
  for (const auto& inbox : inboxes) {
    REQUIRE(inbox.calls().size() == 1);
    CHECK(inbox.calls()[0].outcome);
  }
}

TEST_CASE("watchdog: a reduction that stays incomplete fails and names who came") {
  const auto reduction = make_reduction(3);
  std::vector<Inbox<Moments>> inboxes(3);
  {
    const ScopedTimeout timeout(0.02);
    arrive(*reduction, {"gpu", 1}, part_of(1), inboxes[0].then());
    arrive(*reduction, {"cpu", 4}, part_of(0), inboxes[1].then());
    for (const std::size_t rank : {0, 1}) {
      const auto call = inboxes[rank].wait();
      CHECK_FALSE(call.outcome);
      CHECK(call.thread != std::this_thread::get_id());
    }
  }
  const std::string error = inboxes[0].wait().outcome.error;
  CAPTURE(error);
  CHECK(contains(error, "layer 'a' round 7 forward waited "));
  CHECK(contains(error, "num_devices=3"));
  // The timeout may be over before the second device has come.
  CHECK((contains(error, "Came: cpu(4), gpu(1).") || contains(error, "Came: gpu(1).")));
  CHECK(inboxes[1].wait().outcome.error == error);

  arrive(*reduction, {"cpu", 0}, part_of(2), inboxes[2].then());
  reduction->fail("too late");
  for (const auto& inbox : inboxes) {
    REQUIRE(inbox.calls().size() == 1);
    CHECK(inbox.calls()[0].outcome.error == error);
  }
}

TEST_CASE("watchdog: it warns once before a reduction fails, and tells of the timeout first") {
  const auto members = make_members(3);
  for (int round = 0; round < 8; ++round) members->next({"cpu", 4}, Membership::kJustMade);
  const auto reduction = std::make_shared<Reduction>(members, 7, Direction::kForward);
  const CapturedErrors errors;
  Inbox<Moments> inbox;
  std::uint64_t next = 0;
  {
    const ScopedTimeout timeout(0.5);
    arrive(*reduction, {"cpu", 4}, part_of(0), [&, then = inbox.then()](auto&&... outcome) {
      next = next_of_newcomer(members.get());
      then(outcome...);
    });
    inbox.wait();
  }
  CHECK(next == 8);
  const std::string text = errors.text();
  CAPTURE(text);
  CHECK(text.find("gluon_syncbn: warning: layer 'a' round 7 forward has waited ") == 0);
  CHECK(contains(text, "for all of 3 devices and fails at 0.5 s"));
  CHECK(contains(text, "Came: cpu(4) (8 training forwards)."));
  CHECK(text.find('\n') == text.size() - 1);
}

TEST_CASE("watchdog: a failure that is no timeout is not told as one") {
  const auto members = make_members(2);
  members->next({"cpu", 4}, Membership::kJustMade);
  std::make_shared<Reduction>(members, 0, Direction::kForward)->fail("reason");
  CHECK(next_of_newcomer(members.get()) == 0);
}

TEST_CASE("watchdog: a timeout of 0 waits forever, until another one is set") {
  const auto reduction = make_reduction(2);
  Inbox<Moments> inbox;
  const ScopedTimeout for_ever(0);
  arrive(*reduction, device_of(0), part_of(0), inbox.then());
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(inbox.calls().empty());
  const ScopedTimeout timeout(0.01);
  CHECK(contains(inbox.wait().outcome.error, device_of(0).name()));
}

TEST_CASE("watchdog: many give up together, and those that have met are left alone") {
  const auto complete = make_reduction(2);
  std::vector<Inbox<Moments>> met(2);
  for (const std::size_t rank : {0, 1}) {
    arrive(*complete, device_of(rank), part_of(rank), met[rank].then());
  }
  std::vector<std::shared_ptr<Reduction>> incomplete;
  std::vector<Inbox<Moments>> waiting(20);
  for (const auto& inbox : waiting) {
    incomplete.push_back(make_reduction(2));
    arrive(*incomplete.back(), device_of(0), part_of(0), inbox.then());
  }
  {
    const ScopedTimeout timeout(0.01);
    for (const auto& inbox : waiting) CHECK_FALSE(inbox.wait().outcome);
  }
  for (const auto& inbox : waiting) CHECK(inbox.calls().size() == 1);
  for (const auto& inbox : met) {
    REQUIRE(inbox.calls().size() == 1);
    CHECK(inbox.calls()[0].outcome);
  }
}

TEST_CASE("watchdog: a reduction that everybody has left is forgotten") {
  Inbox<Moments> abandoned;
  auto reduction = make_reduction(2);
  arrive(*reduction, device_of(0), part_of(0), abandoned.then());
  reduction.reset();

  // The next one to give up shows that the watchdog has passed by.
  reduction = make_reduction(2);
  Inbox<Moments> inbox;
  const ScopedTimeout timeout(0.01);
  arrive(*reduction, device_of(0), part_of(0), inbox.then());
  CHECK_FALSE(inbox.wait().outcome);
  CHECK(abandoned.calls().empty());
}

TEST_CASE("watchdog: giving up while devices still arrive answers everybody once") {
  const ScopedTimeout timeout(0.01);
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto reduction = make_reduction(4);
    std::vector<Inbox<Moments>> inboxes(4);
    run_ranks(4, [&](std::size_t rank) {
      std::this_thread::sleep_for(std::chrono::milliseconds(rank == 0 ? 0 : 9 + rank));
      arrive(*reduction, device_of(rank), part_of(rank), inboxes[rank].then());
      inboxes[rank].wait();
    });
    const auto first = inboxes[0].wait().outcome;
    for (const auto& inbox : inboxes) {
      REQUIRE(inbox.calls().size() == 1);
      CHECK(inbox.calls()[0].outcome.merged == first.merged);
      CHECK(inbox.calls()[0].outcome.error == first.error);
    }
  }
}

}  // namespace gluon_syncbn::tests

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "common/device.h"
#include "common/error.h"
#include "support/inbox.h"
#include "support/ranks.h"
#include "support/values.h"
#include "support/wait_until.h"
#include "sync/barrier.h"
#include "sync/wait_messages.h"

namespace gluon_syncbn::tests {
namespace {

const Device kA{"cpu", 0};
const Device kB{"cpu", 1};
const Signature kSignature{8, "float32", 1e-5, 0.9};

std::shared_ptr<Barrier> named(const std::string& key, std::size_t num_devices) {
  Barrier::Options options;
  options.key = key;
  return Barrier::named("layer", num_devices, options);
}

}  // namespace

TEST_CASE("barrier: rounds and backward passes go that all devices have joined") {
  const auto barrier = std::make_shared<Barrier>("layer", 2);
  auto round = barrier->join(kA).round;
  const std::weak_ptr<Barrier::Round> round_left = round;
  CHECK(barrier->join(kB).round == round);
  auto backward = barrier->next_backward(round, kA);
  const std::weak_ptr<Barrier::Meeting> backward_left = backward.meeting;
  CHECK(barrier->next_backward(round, kB).meeting == backward.meeting);
  backward = {};
  CHECK(backward_left.expired());
  round.reset();
  CHECK(round_left.expired());
}

TEST_CASE("barrier: an error without words is an error") {
  const LonePlace meeting("layer", 2, 0);
  const Inbox inbox;
  arrive(meeting, device_of(0), some_moments(0), inbox.then());
  meeting.fail("");
  const Outcome outcome = inbox.wait().outcome;
  CHECK_FALSE(static_cast<bool>(outcome));
  CHECK(outcome.error == "layer round 0 forward: ");
}

TEST_CASE("barrier: what completes a pass may own the barrier and call fail") {
  auto meeting = std::make_shared<At>(LonePlace("layer", 2, 0));
  const std::weak_ptr<Barrier> observer = meeting->barrier;
  std::vector<Inbox> inboxes(2);
  for (const auto rank : {0u, 1u}) {
    arrive(*meeting, device_of(rank), some_moments(rank),
           [owner = meeting, then = inboxes[rank].then()](const Outcome& outcome) {
             owner->fail("from a continuation");
             then(outcome);
           });
  }
  meeting.reset();
  // The watchdog owns a barrier while it looks at it.
  CHECK(wait_until([&] { return observer.expired(); }));
  for (const auto& inbox : inboxes) {
    REQUIRE(inbox.calls().size() == 1);
    CHECK(inbox.calls()[0].outcome);
  }
}

TEST_CASE("barrier: devices that never came are named if all that should come are known") {
  const auto missing = [](std::size_t num_devices, const std::vector<int>& device_ids) {
    Barrier::Options options;
    options.device_ids = device_ids;
    Calls calls(num_devices);
    calls.join({"gpu", 2}, Calls::kNow);
    const Wait wait{"meeting", Direction::kForward, {{"gpu", 2}}, "", calls};
    const auto text = ending_error({"layer", num_devices, options}, wait, Seconds(1),
                                   {"", Missing::kAnything, Absent::kHaveLeftItOut});
    const auto begin = text.find("Missing: ") + std::string("Missing: ").size();
    return text.substr(begin, text.find(".\n", begin) - begin);
  };
  CHECK(missing(3, {3, 2, 0}) ==
        "gpu(0) (never called in training), gpu(3) (never called in training)");
  CHECK(missing(3, {}) == "2 devices never called in training");
  // A graph that was loaded on other devices than it was made for.
  CHECK(missing(3, {4, 5, 6}) == "2 devices never called in training");
  CHECK(missing(4, {0, 2, 3}) == "3 devices never called in training");
}

TEST_CASE("signature: the first value that differs is named") {
  const auto difference = [](const Signature& other) {
    return kSignature.difference(other).value_or("none");
  };
  CHECK(difference(kSignature) == "none");
  CHECK(difference({9, "float32", 1e-5, 0.9}) == "channels 8 and 9");
  CHECK(difference({8, "float16", 1e-5, 0.9}) == "dtype float32 and float16");
  CHECK(difference({8, "float32", 1e-3, 0.9}) == "eps 1.0000000000000001e-05 and 0.001");
  CHECK(difference({8, "float32", 1e-5, 0.99}) ==
        "momentum 0.90000000000000002 and 0.98999999999999999");
  CHECK(difference({8, "float32", 1e-5, std::nullopt}) == "momentum 0.90000000000000002 and None");
  CHECK(difference({9, "float16", 1e-3, 0.99}) == "channels 8 and 9");
}

TEST_CASE("barrier: a CPU context and a GPU context cannot meet") {
  const auto round = join(named("kinds", 2), kA);
  round.agree(kA, kSignature);
  CHECK_THROWS_WITH_AS(round.agree({"gpu", 1}, kSignature),
                       "layer round 0 forward: devices cpu(0) and gpu(1) differ: contexts cpu and "
                       "gpu, which cannot meet: use CPU contexts alone, or GPU contexts alone",
                       Error);
}

TEST_CASE("named barriers: one key and number of devices share a barrier") {
  const std::size_t before = Barrier::all_named().size();
  {
    const auto first = named("test key", 1);
    CHECK(named("test key", 1) == first);
    CHECK(Barrier::all_named().size() == before + 1);
    const auto other_number = named("test key", 3);
    CHECK(other_number != first);
    CHECK(other_number->num_devices() == 3);
    CHECK(named("another test key", 1) != first);
    CHECK(Barrier::all_named().size() == before + 2);
    first->join(kA);
    CHECK_THROWS_AS(first->join(kB), Error);
  }
  CHECK(Barrier::all_named().size() == before);
  CHECK_NOTHROW(named("test key", 1)->join(kB));  // anew
}

TEST_CASE("named barriers: many threads that take and release leave nothing after them") {
  const std::size_t before = Barrier::all_named().size();
  const auto held = named("held", 2);
  std::vector<std::size_t> wrong(6);
  run_ranks(wrong.size(), [&](std::size_t rank) {
    for (std::size_t i = 0; i < 2000; ++i) {
      const std::string key = "shared " + std::to_string((i / 8 + rank) % 3);
      const auto first = named(key, 2);
      const auto second = named(key, 2);
      if (first != second || named("held", 2) != held) ++wrong[rank];
      if (Barrier::all_named().size() < before + 2) ++wrong[rank];
    }
  });
  for (const std::size_t count : wrong) CHECK(count == 0);
  CHECK(Barrier::all_named().size() == before + 1);
}

}  // namespace gluon_syncbn::tests

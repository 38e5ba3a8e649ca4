#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/device.h"
#include "common/error.h"
#include "support/inbox.h"
#include "support/ranks.h"
#include "support/values.h"
#include "sync/barrier.h"
#include "sync/failed_steps.h"
#include "sync/wait_messages.h"

namespace gluon_syncbn::tests {
namespace {

const Device kA{"cpu", 0};
const Device kB{"cpu", 1};
const Device kC{"cpu", 2};
const Signature kSignature{8, "float32", 1e-5, 0.9};

std::uint32_t number_of(std::size_t round, const Device& device) {
  return static_cast<std::uint32_t>(round * 100) + static_cast<std::uint32_t>(device.index);
}

std::shared_ptr<Barrier> named(const std::string& key, std::size_t num_devices) {
  Barrier::Options options;
  options.key = key;
  return Barrier::named("layer", num_devices, options);
}

/// Joins the next round of `device`, which should be number `round`, and arrives at its forward.
At enter(const std::shared_ptr<Barrier>& barrier, const Device& device, std::size_t round,
         const Inbox& inbox, Calls::Epoch epoch = Calls::kNow) {
  const auto joined = join(barrier, device, epoch);
  joined.agree(device, kSignature);
  arrive(joined, device, some_moments(number_of(round, device)), inbox.then());
  return joined;
}

/// Whether `inbox` was called once, with the merged parts of kA and kB in this round.
bool has_met(const Inbox& inbox, std::size_t round) {
  const auto calls = inbox.calls();
  const Part expected =
      merge_all({some_moments(number_of(round, kA)), some_moments(number_of(round, kB))});
  return calls.size() == 1 && calls[0].outcome && same_bits(*calls[0].outcome.merged, expected);
}

/// The error that `inbox` was called with, once.
std::string error_in(const Inbox& inbox) {
  const auto calls = inbox.calls();
  if (calls.size() != 1) return "called " + std::to_string(calls.size()) + " times";
  return calls[0].outcome ? "called without an error" : calls[0].outcome.error;
}

/// The round `number` of the barrier works for kA and kB.
void check_works(const std::shared_ptr<Barrier>& barrier, std::size_t number) {
  Inbox of_a;
  Inbox of_b;
  enter(barrier, kB, number, of_b);
  enter(barrier, kA, number, of_a);
  CHECK(has_met(of_a, number));
  CHECK(has_met(of_b, number));
}

/// The next call of these devices repeats an error.
void check_repeat(const std::shared_ptr<Barrier>& barrier, const std::vector<Device>& devices,
                  const std::string& error) {
  for (const Device& device : devices) {
    const auto epoch = barrier->announce(device);
    CHECK_THROWS_WITH_AS(barrier->join(device, epoch), doctest::Contains(error.c_str()), Error);
  }
}

/// The next call of each of three devices joins the round `number`, the late device's first.
void check_all_meet(const std::shared_ptr<Barrier>& barrier, std::size_t number) {
  std::vector<Inbox> inboxes;
  for (const Device& device : {kC, kA, kB}) {
    enter(barrier, device, number, inboxes.emplace_back(), barrier->announce(device));
  }
  for (const auto& inbox : inboxes) CHECK(error_in(inbox) == "called without an error");
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

TEST_CASE("barrier: one device more than num_devices is refused and harms no other") {
  const auto barrier = std::make_shared<Barrier>("layer 'x'", 2);
  check_works(barrier, 0);
  const auto refused = doctest::Contains(
      "layer 'x' synchronizes cpu(0), cpu(1) (num_devices=2) and was called on cpu(2) as well.");
  CHECK_THROWS_WITH_AS(barrier->join(kC), refused, Error);
  check_works(barrier, 1);
  CHECK_THROWS_WITH_AS(barrier->join(kC), refused, Error);
}

namespace {

/// The error after `calls`, of which those of `present` wait.
std::string timeout_error(const Barrier& barrier, const Calls& calls, Direction direction,
                          const Device& present) {
  const Ending timeout{"", Missing::kAnything, Absent::kHaveLeftItOut};
  return ending_error(barrier, {"meeting", direction, {present}, "", calls}, Seconds(1), timeout);
}

}  // namespace

TEST_CASE("barrier: devices that never came are named if all that should come are known") {
  const auto missing = [](std::size_t num_devices, const std::vector<int>& device_ids) {
    Barrier::Options options;
    options.device_ids = device_ids;
    Calls calls(num_devices);
    calls.join({"gpu", 2}, Calls::kNow);
    const auto text =
        timeout_error({"layer", num_devices, options}, calls, Direction::kForward, {"gpu", 2});
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

TEST_CASE("barrier: an error ends with the likeliest causes of its case") {
  const Barrier barrier("layer", 2);
  Calls calls(2);
  const auto last_lines = [&](Direction direction) {
    const auto text = timeout_error(barrier, calls, direction, kA);
    return text.substr(text.find('\n', text.find('\n') + 1) + 1);
  };
  const auto join = [&](const Device& device) { calls.join(device, Calls::kNow); };
  const std::string rest =  // no pages lie beside this program
      "\nAll causes: docs/troubleshooting.md of the project, 'A device does not come'.";
  const std::string reads =
      "Likely: the loop reads a result of one device (asnumpy, asscalar, wait_to_read, waitall, "
      "or a new DataLoader, which calls waitall) before it has called the others; or ";
  const std::string moved =
      "(after you move a hybridized network to other contexts, call hybridize() again).";
  const std::string ended =
      "an exception or an interrupt ended a step between two devices, or the thread of one (after "
      "that, call gluon_syncbn.drop_step())";
  join(kA);
  CHECK(last_lines(Direction::kForward) ==
        reads + "num_devices is larger than the number of devices in use " + moved + rest);
  CHECK(last_lines(Direction::kBackward) ==
        "Likely: backward was called for some devices only (give the losses of all devices to "
        "autograd.backward, or call backward() of each); or the output of the layer does not reach "
        "the loss on a device; or " +
            ended + "." + rest);
  join(kB);
  join(kA);
  CHECK(last_lines(Direction::kForward) ==
        reads +
            "a missing device got no data this step (if a last batch has fewer images than there "
            "are devices, the DataLoader should have last_batch='discard'); or " +
            ended + "; or the step uses fewer devices than before " + moved + rest);
  join(kA);
  CHECK(last_lines(Direction::kForward) ==
        "Likely: a branch that calls the layer was taken on some devices only, or more often on "
        "one than on another; or later steps use fewer devices than the first." +
            rest);
  calls.saw_inference(kB);
  CHECK(last_lines(Direction::kForward) ==
        "Called in inference mode, without autograd.record() or train_mode: cpu(1); all devices "
        "should train, or none." +
            rest);
}

TEST_CASE("barrier: a device that stayed away for long is brought up to date at once") {
  const auto barrier = std::make_shared<Barrier>("layer", 3);
  {
    const ScopedTimeout timeout(0.01);
    for (std::size_t i = 0; i < 5; ++i) {
      Inbox inbox;
      enter(barrier, kA, i, inbox);
      enter(barrier, kB, i, inbox);
      check_repeat(barrier, {kA, kB}, inbox.wait().outcome.error);
    }
  }
  check_repeat(barrier, {kC}, "an earlier step has failed");
  check_all_meet(barrier, 5);
}

TEST_CASE("barrier: calls that wait for a device that leaves them out fail at once") {
  const auto barrier = std::make_shared<Barrier>("layer", 2);
  Inbox first;
  Inbox second;
  const ScopedTimeout for_ever(0);
  const auto failed = enter(barrier, kA, 0, first);
  enter(barrier, kA, 1, second);
  failed.fail(kA, "no memory");
  check_repeat(barrier, {kA, kB}, "failed on cpu(0): no memory");  // the step was broken off
  Inbox of_b;
  enter(barrier, kB, 2, of_b, barrier->announce(kB));
  CHECK(error_in(first) == "layer round 0 forward: failed on cpu(0): no memory");
  CHECK(contains(error_in(second), "layer round 1 forward: cpu(1) was left behind"));
  CHECK(of_b.calls().empty());
  Inbox of_a;
  enter(barrier, kA, 2, of_a);
  CHECK(has_met(of_a, 2));
  CHECK(has_met(of_b, 2));
}

TEST_CASE("barrier: after a failure at once, peers in the same step get its error") {
  const auto barrier = std::make_shared<Barrier>("layer", 3);
  join(barrier, kA, barrier->announce(kA)).fail(kA, "no memory");
  std::vector<Inbox> inboxes(2);
  // Made after the failure, but no device of the failed round was called again.
  enter(barrier, kB, 0, inboxes[0], barrier->announce(kB));
  enter(barrier, kC, 0, inboxes[1], barrier->announce(kC));
  for (const auto& inbox : inboxes) {
    CHECK(error_in(inbox) == "layer round 0 forward: failed on cpu(0): no memory");
  }
  check_repeat(barrier, {kB, kA, kC}, "failed on cpu(0): no memory");
  check_all_meet(barrier, 1);
}

TEST_CASE("barrier: operations that are slow, not absent, keep their rounds after a failure") {
  const auto barrier = std::make_shared<Barrier>("layer", 2);
  std::vector<Calls::Epoch> slow;
  join(barrier, kA, barrier->announce(kA)).fail(kA, "no memory");
  slow.push_back(barrier->announce(kB));
  std::vector<Inbox> of_a(4);
  check_repeat(barrier, {kA}, "no memory");
  for (std::size_t i = 1; i < 4; ++i) {
    slow.push_back(barrier->announce(kB));
    enter(barrier, kA, i, of_a[i], barrier->announce(kA));
  }
  slow.push_back(barrier->announce(kB));
  Inbox failed;
  enter(barrier, kB, 0, failed, slow[0]);
  CHECK(contains(error_in(failed), "no memory"));
  CHECK_THROWS_WITH_AS(barrier->join(kB, slow[1]), doctest::Contains("no memory"), Error);
  slow.erase(slow.begin());
  for (std::size_t i = 1; i < 4; ++i) {
    Inbox inbox;
    enter(barrier, kB, i, inbox, slow[i]);
    CHECK(has_met(inbox, i));
    CHECK(has_met(of_a[i], i));
  }
}

TEST_CASE("barrier: the message names a device in inference mode") {
  const auto barrier = named("test key", 2);
  const auto other = named("test key", 3);
  const ScopedTimeout timeout(0.05);
  Inbox of_a;
  Inbox of_c;
  check_works(barrier, 0);
  barrier->saw_inference(kB);
  barrier->saw_inference(kB);
  enter(barrier, kA, 1, of_a);
  enter(other, kC, 0, of_c);
  other->saw_inference(kB);
  const std::string error = of_a.wait().outcome.error;
  CAPTURE(error);
  CHECK(contains(error, "Came: cpu(0) (2 training forwards)."));
  CHECK(contains(error, "Missing: cpu(1) (1 training forward, then 2 in inference mode)."));
  CHECK(contains(error, "in inference mode, without autograd.record() or train_mode: cpu(1);"));
  const std::string error_of_other = of_c.wait().outcome.error;
  CHECK(contains(error_of_other, "Missing: 2 devices never called in training."));
  CHECK(contains(error_of_other,
                 "in inference mode, without autograd.record() or train_mode: cpu(1);"));
}

TEST_CASE("barrier: after a dropped step no error is repeated, and all devices meet") {
  const auto barrier = std::make_shared<Barrier>("layer", 3);
  Inbox inbox;
  const auto fail = [&] {
    join(barrier, kA, barrier->announce(kA)).fail(kA, "no memory");
    enter(barrier, kB, 0, inbox, barrier->announce(kB));
  };
  const auto drop = [] { FailedSteps::instance().drop(); };
  SUBCASE("before the error is repeated") { fail(); }
  SUBCASE("while it is repeated") {
    fail();
    check_repeat(barrier, {kB}, "no memory");
  }
  SUBCASE("and inference drops nothing") {
    fail();
    barrier->saw_inference(kC);
  }
  drop();
  check_all_meet(barrier, 1);
  drop();
  const auto before = barrier->announce(kA);
  drop();
  CHECK(barrier->announce(kA) == before);  // nothing was left to drop
}

TEST_CASE("barrier: a call of a failed step that comes after later calls is refused") {
  const auto barrier = std::make_shared<Barrier>("layer", 2);
  const auto late = barrier->announce(kB);
  Inbox inbox;
  {
    const ScopedTimeout timeout(0.01);
    enter(barrier, kA, 0, inbox, barrier->announce(kA));
    inbox.wait();
  }
  check_repeat(barrier, {kB, kA}, "forward waited");
  CHECK_THROWS_WITH_AS(barrier->join(kB, late), doctest::Contains("made before a step failed"),
                       Error);
  check_works(barrier, 1);
}

TEST_CASE("barrier: a device that fails after forward fails its peers in backward at once") {
  const auto barrier = std::make_shared<Barrier>("layer", 2);
  const ScopedTimeout for_ever(0);
  Inbox forward;
  const auto round = enter(barrier, kA, 0, forward);
  enter(barrier, kB, 0, forward);
  Inbox before;
  Inbox after;
  arrive(round.next_backward(kA), kA, some_sums(0), before.then());
  round.fail(kB, "no memory");
  arrive(round.next_backward(kA), kA, some_sums(0), after.then());
  for (const auto& inbox : {before, after}) {
    REQUIRE(inbox.calls().size() == 1);
    CHECK(inbox.calls()[0].outcome.error == "layer round 0 backward: failed on cpu(1): no memory");
  }
  check_repeat(barrier, {kA, kB}, "layer round 0 forward: failed on cpu(1): no memory");
  check_works(barrier, 1);
}

TEST_CASE("barrier: a device that fails after forward fails a peer that comes to backward later") {
  const auto barrier = std::make_shared<Barrier>("layer", 2);
  Inbox forward;
  const auto round = enter(barrier, kA, 0, forward);
  enter(barrier, kB, 0, forward);
  round.fail(kB, "no memory");
  Inbox backward;
  arrive(round.next_backward(kA), kA, some_sums(0), backward.then());
  CHECK(error_in(backward) == "layer round 0 backward: failed on cpu(1): no memory");
}

TEST_CASE("barrier: backward times out as forward does, and the next pass works") {
  const auto barrier = std::make_shared<Barrier>("layer", 2);
  Inbox forward;
  const auto round = enter(barrier, kA, 0, forward);
  enter(barrier, kB, 0, forward);
  Inbox of_a;
  Inbox of_b;
  {
    const ScopedTimeout timeout(0.01);
    arrive(round.next_backward(kB), kB, some_sums(1), of_b.then());
    CHECK(contains(of_b.wait().outcome.error, "layer round 0 backward waited "));
    CHECK(contains(of_b.wait().outcome.error, "Came: cpu(1). Missing: cpu(0)."));
  }
  arrive(round.next_backward(kA), kA, some_sums(0), of_a.then());
  CHECK(of_a.wait().outcome.error == of_b.wait().outcome.error);

  Inbox again;
  arrive(round.next_backward(kA), kA, some_sums(2), again.then());
  arrive(round.next_backward(kB), kB, some_sums(3), again.then());
  CHECK(again.wait().outcome);
}

TEST_CASE("signature: the first value that differs is named") {
  const auto difference = [](const Signature& other) {
    return kSignature.difference(other).value_or("none");
  };
  CHECK(difference(kSignature) == "none");
  CHECK(difference({9, "float32", 1e-5, 0.9}) == "channels 8 and 9");
  CHECK(difference({8, "float16", 1e-5, 0.9}) == "dtype float32 and float16");
  CHECK(contains(difference({8, "float32", 1e-3, 0.9}), "eps 1"));
  CHECK(contains(difference({8, "float32", 1e-5, 0.99}), "momentum 0.9"));
  CHECK(contains(difference({8, "float32", 1e-5, std::nullopt}), " and None"));
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

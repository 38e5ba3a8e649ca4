#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/device.h"
#include "common/watchdog.h"
#include "support/captured_errors.h"
#include "support/inbox.h"
#include "support/ranks.h"
#include "support/values.h"
#include "sync/barrier.h"

namespace gluon_syncbn::tests {
namespace {

Part part_of(std::size_t rank) { return some_moments(static_cast<std::uint32_t>(rank)); }

}  // namespace

TEST_CASE("meeting: fail reaches those who wait and those who come later, unless all have met") {
  constexpr std::size_t kRanks = 4;
  for (const std::string message : {"first", ""}) {
    for (std::size_t waiting = 0; waiting <= kRanks; ++waiting) {
      CAPTURE(waiting);
      const LonePlace meeting("layer 'a'", kRanks, 7);
      std::vector<Inbox> inboxes(kRanks);
      const auto come = [&](std::size_t rank) {
        arrive(meeting, device_of(rank), part_of(rank), inboxes[rank].then());
      };
      for (std::size_t rank = 0; rank < waiting; ++rank) come(rank);
      meeting.fail(message);
      meeting.fail("second");
      for (std::size_t rank = 0; rank < waiting; ++rank) CHECK(inboxes[rank].calls().size() == 1);
      for (std::size_t rank = waiting; rank < kRanks; ++rank) come(rank);
      const bool is_late = waiting == kRanks;
      for (const auto& inbox : inboxes) {
        REQUIRE(inbox.calls().size() == 1);
        CHECK(static_cast<bool>(inbox.calls()[0].outcome) == is_late);
        const std::string error = is_late ? "" : "layer 'a' round 7 forward: " + message;
        CHECK(inbox.calls()[0].outcome.error == error);
      }
    }
  }
}

TEST_CASE("meeting: continuations may own the reduction and call fail") {
  auto meeting = std::make_shared<At>(LonePlace("layer 'a'", 2, 7));
  const std::weak_ptr<Barrier> observer = meeting->barrier;
  std::vector<Inbox> inboxes(2);
  for (const std::size_t rank : {0, 1}) {
    arrive(*meeting, device_of(rank), part_of(rank),
           [owner = meeting, then = inboxes[rank].then()](const Outcome& outcome) {
             owner->fail("from a continuation");
             then(outcome);
           });
  }
  meeting.reset();
  // The watchdog owns a barrier while it looks at it.
  for (int i = 0; i < 60000 && !observer.expired(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(observer.expired());
  for (const auto& inbox : inboxes) {
    REQUIRE(inbox.calls().size() == 1);
    CHECK(inbox.calls()[0].outcome);
  }
}

TEST_CASE("meeting: a device that comes twice is an internal error, and all are told once") {
  const LonePlace meeting("layer", 2, 0);
  const Inbox first;
  const Inbox again;
  arrive(meeting, {"cpu", 0}, part_of(0), first.then());
  arrive(meeting, {"cpu", 0}, part_of(0), again.then());
  CHECK(first.wait().outcome.error == "layer round 0 forward: cpu(0) came twice");
  CHECK(first.calls().size() == 1);
  const std::string error = again.wait().outcome.error;
  CHECK(contains(error, "internal error of gluon_syncbn, please report it"));
  CHECK(contains(error, "layer round 0 forward: cpu(0) came twice"));
}

TEST_CASE("meeting: a device that comes after the last one is an internal error") {
  const LonePlace meeting("layer", 2, 0);
  const Inbox inbox;
  arrive(meeting, {"cpu", 0}, part_of(0), inbox.then());
  arrive(meeting, {"cpu", 1}, part_of(0), inbox.then());
  const Inbox late;
  arrive(meeting, {"cpu", 2}, part_of(0), late.then());
  CHECK(contains(late.wait().outcome.error, "internal error of gluon_syncbn"));
  CHECK(inbox.calls().size() == 2);
}

TEST_CASE("watchdog: a meeting that stays incomplete fails and names who came") {
  const LonePlace meeting("layer 'a'", 3, 7);
  std::vector<Inbox> inboxes(3);
  {
    const ScopedTimeout timeout(0.02);
    arrive(meeting, {"gpu", 1}, part_of(1), inboxes[0].then());
    arrive(meeting, {"cpu", 4}, part_of(0), inboxes[1].then());
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

  arrive(meeting, {"cpu", 0}, part_of(2), inboxes[2].then());
  meeting.fail("too late");
  for (const auto& inbox : inboxes) {
    REQUIRE(inbox.calls().size() == 1);
    CHECK(inbox.calls()[0].outcome.error == error);
  }
}

TEST_CASE("watchdog: it warns once before a meeting fails, and tells of the timeout first") {
  const auto group = std::make_shared<Barrier>("layer 'a'", 3);
  At round;
  for (int i = 0; i < 8; ++i) round = join(group, {"cpu", 4});
  const CapturedErrors errors;
  Inbox inbox;
  std::string next;
  {
    const ScopedTimeout timeout(0.5);
    arrive(round, {"cpu", 4}, part_of(0), [&, then = inbox.then()](auto&&... outcome) {
      try {
        group->join({"cpu", 99});  // a device that never came
      } catch (const Error& error) {
        next = error.what();
      }
      then(outcome...);
    });
    inbox.wait();
  }
  CHECK(contains(next, "layer 'a' round 8 forward: an earlier step has failed"));
  const std::string text = errors.text();
  CAPTURE(text);
  CHECK(text.find("gluon_syncbn: warning: layer 'a' round 7 forward has waited ") == 0);
  CHECK(contains(text, "for all of 3 devices and fails at 0.5 s"));
  CHECK(contains(text, "Came: cpu(4) (8 training forwards)."));
  CHECK(text.find("warning") == text.rfind("warning"));
}

TEST_CASE("watchdog: a timeout of 0 waits forever, until another one is set") {
  const LonePlace meeting("layer 'a'", 2, 7);
  Inbox inbox;
  const ScopedTimeout for_ever(0);
  arrive(meeting, device_of(0), part_of(0), inbox.then());
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(inbox.calls().empty());
  const ScopedTimeout timeout(0.01);
  CHECK(contains(inbox.wait().outcome.error, device_of(0).name()));
}

TEST_CASE("watchdog: a meeting that everybody has left is forgotten") {
  Inbox abandoned;
  {
    const LonePlace left("layer 'a'", 2, 7);
    arrive(left, device_of(0), part_of(0), abandoned.then());
  }

  // The next one to give up shows that the watchdog has passed by.
  const LonePlace meeting("layer 'a'", 2, 7);
  Inbox inbox;
  const ScopedTimeout timeout(0.01);
  arrive(meeting, device_of(0), part_of(0), inbox.then());
  CHECK_FALSE(inbox.wait().outcome);
  CHECK(abandoned.calls().empty());
}

}  // namespace gluon_syncbn::tests

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "distributed/roll_call.h"
#include "support/inbox.h"
#include "support/ranks.h"
#include "support/wire.h"

namespace gluon_syncbn::tests {
namespace {

/// What a process says about those missing under `name`, once it contains `words`; otherwise what
/// it says after ten seconds.
std::string told(const RollCall& process, const std::string& name, const std::string& words) {
  for (int i = 0; i < 1000 && !contains(process.missing(name), words); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return process.missing(name);
}

std::vector<std::shared_ptr<RollCall>> make_processes(const std::shared_ptr<Wire>& wire) {
  std::vector<std::shared_ptr<RollCall>> processes;
  for (int i = 0; i < wire->size(); ++i) {
    processes.push_back(std::make_shared<RollCall>(std::make_shared<WiredGroup>(wire, i)));
  }
  return processes;
}

void ignore(const ProcessGroup::Gathered&) {}

}  // namespace

TEST_CASE("every process knows which others are missing, and what they wait for instead") {
  const ScopedTimeout timeout(0.4);
  const auto wire = std::make_shared<Wire>(4);
  const auto processes = make_processes(wire);
  for (const auto& process : processes) process->begin();
  for (const std::size_t i : {0, 2}) processes[i]->gather("a", {}, ignore);
  processes[1]->gather("b", {}, ignore);

  const std::string missing = "Missing: process 1 (waits in b), process 3 (waits for no other).";
  for (const std::size_t i : {0, 2}) CHECK(told(*processes[i], "a", missing) == missing);
  const std::string others =
      "Missing: process 0 (waits in a), process 2 (waits in a), process 3 (waits for no other).";
  CHECK(told(*processes[1], "b", others) == others);

  for (const std::size_t i : {1, 3}) processes[i]->gather("a", {}, ignore);
  const std::string rest =
      "Missing: process 0 (waits for no other), process 2 (waits for no other), "
      "process 3 (waits for no other).";
  CHECK(told(*processes[1], "b", rest) == rest);
  for (const auto& process : processes) process->end();
  wire->forget();
}

TEST_CASE("a process that does not answer a roll call is not named, but its silence is") {
  const ScopedTimeout timeout(0.4);
  const auto wire = std::make_shared<Wire>(2);
  const auto processes = make_processes(wire);
  processes[0]->begin();
  processes[0]->gather("a", {}, ignore);
  const std::string start = "Missing: who has no a. One of them does not even answer a roll call";
  CHECK(contains(told(*processes[0], "a", "does not even answer"), start));
  processes[0]->end();
  wire->forget();
}

TEST_CASE("where the processes are no longer connected, nobody is called missing") {
  class ClosedGroup : public WiredGroup {
   public:
    using WiredGroup::WiredGroup;
    void gather(const std::string&, Words, OnGathered then) override {
      ++gathers;
      then({{}, "closed"});
    }
    std::atomic<int> gathers{0};
  };
  const ScopedTimeout timeout(0.4);
  const auto closed = std::make_shared<ClosedGroup>(std::make_shared<Wire>(2), 0);
  const auto process = std::make_shared<RollCall>(closed);
  std::string error;
  process->gather("a", {}, [&](const ProcessGroup::Gathered& gathered) { error = gathered.error; });
  CHECK(error == "closed");
  for (int i = 0; i < 1000 && closed->gathers < 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(closed->gathers == 2);
  CHECK(process->missing("a") == "Missing: who has no a.");
  process->end();
}

}  // namespace gluon_syncbn::tests

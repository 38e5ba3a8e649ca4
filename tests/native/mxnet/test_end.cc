// What changes the whole process: in a process of their own, in this order
// (tests/native/CMakeLists).

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "common/watchdog.h"
#include "mxnet/layer.h"

// library.cc
extern "C" const char* gluon_syncbn_retire() noexcept;
extern "C" void gluon_syncbn_wait_for_errors() noexcept;

TEST_SUITE_BEGIN("end");

namespace gluon_syncbn::tests {

// CUDA itself does not work in a child of fork.
TEST_CASE_FIXTURE(Library, "end: parent and child of a fork train on" *
                               doctest::skip(tested_type() == "gpu")) {
  const auto results = [] {
    const Layer layer("bn", 3, 2);
    const Batch x(kTwo, 1);
    auto calls = layer.call(x.arrays);
    Values all;
    for (std::size_t d = 0; d < 2; ++d) calls[d].backward(x.arrays[d]);
    for (const Call& call : calls) {
      for (const NDArray& array : {call.out, call.gradients.front()}) {
        for (const long double value : array.read()) all.push_back(value);
      }
    }
    fake_mxnet::Engine::get().wait_for_all();
    return all;
  };
  const Values before = results();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  const bool works = results() == before;
  if (child == 0) _exit(works ? 0 : 1);
  CHECK(works);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE_FIXTURE(Library,
                  "end: forks while steps are under way" * doctest::skip(tested_type() == "gpu")) {
  const Layer layer("bn", 3, 2);
  const Batch x({{2, 3, 4000}, {1, 3, 4000}}, 1);
  const auto begin_step = [&] {
    auto calls = layer.call(x.arrays);
    for (std::size_t d = 0; d < 2; ++d) calls[d].backward(x.arrays[d]);
  };
  for (int i = 0; i < 20; ++i) {
    begin_step();
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      begin_step();
      fake_mxnet::Engine::get().wait_for_all();
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
}

TEST_CASE_FIXTURE(Library, "end: what waits for devices is told that the process ends") {
  const Layer layer("bn", 3, 2);
  const Batch x(kTwo, 1);
  const Call waiting = layer.call(0, x.arrays[0]);
  const std::string reason = gluon_syncbn_retire();
  CHECK(reason == Watchdog::kRetired);
  check_error(waiting.out, {reason});
  check_error(layer.call(1, x.arrays[1]).out, {reason});
}

TEST_CASE_FIXTURE(Library, "end: MXNet shuts down after the last operation of this library") {
  const Layer layer("bn", 3, 2);
  const Batch x(kTwo, 1);
  auto held = std::make_unique<fake_mxnet::HeldCustomOp>();
  const Call call = layer.call(0, x.arrays[0]);
  held->wait_until_held();
  // Until MXNet has taken the error, or for a second, it pushes operations again and again.
  gluon_syncbn_wait_for_errors();
  const long before = fake_mxnet::Engine::get().pushes();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(fake_mxnet::Engine::get().pushes() == before);
  held.reset();
  check_error(call.out, {Watchdog::kRetired});
}

TEST_CASE_FIXTURE(Library,
                  "end: an error that MXNet does not take does not keep the next waiting") {
  const Layer layer("bn", 3, 2);
  const Batch x(kTwo, 1);
  auto held = std::make_unique<fake_mxnet::HeldCustomOp>();
  const Call call = layer.call(0, x.arrays[0]);
  held->wait_until_held();
  check_error(layer.call(1, x.arrays[1]).out, {Watchdog::kRetired});
  held.reset();
  check_error(call.out, {Watchdog::kRetired});
}

}  // namespace gluon_syncbn::tests

TEST_SUITE_END();

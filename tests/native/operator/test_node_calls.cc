#include <doctest/doctest.h>

#include <memory>
#include <utility>

#include "common/error.h"
#include "operator/node_calls.h"

namespace gluon_syncbn::tests {
namespace {

const Device kDevice{"cpu", 0};

/// A model has running statistics and one operator, which runs in every step (Module).
struct Model {
  double running_mean = 0;
  std::shared_ptr<void> op = std::make_shared<int>();
  bool ran_before = false;

  bool forward(op::NodeCalls* calls) {
    const bool ran = std::exchange(ran_before, true);
    try {
      calls->begin(kDevice, &running_mean, op, ran);
      return true;
    } catch (const Error&) {
      return false;
    }
  }
};

}  // namespace

TEST_CASE("node calls: one of two models goes on alone, and backward of the other never came") {
  op::NodeCalls calls;
  Model first;
  Model second;
  while (first.forward(&calls)) {
    calls.end(kDevice, first.op);
    REQUIRE(second.forward(&calls));
  }
  bool passes = false;
  for (int step = 0; step < 3 && !passes; ++step) passes = first.forward(&calls);
  CHECK(passes);
}

TEST_CASE("node calls: after a model was called twice, a copy of its operator goes on alone") {
  op::NodeCalls calls;
  Model model;
  REQUIRE(model.forward(&calls));
  const auto original = std::exchange(model.op, std::make_shared<int>());
  REQUIRE_FALSE(model.forward(&calls));
  CHECK(model.forward(&calls));
}

}  // namespace gluon_syncbn::tests

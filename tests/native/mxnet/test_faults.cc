// Devices that do not come, come late, fail or do not fit together; calls that are wrong.

#include <doctest/doctest.h>

#include <future>
#include <optional>
#include <string>
#include <vector>

#include "mxnet/layer.h"

namespace gluon_syncbn::tests {
namespace {

const std::vector<Shape> kTwo{{2, 3, 4}, {1, 3, 4}};

/// Steps after a fault have numbers that are right.
void check_steps(Layer* layer) {
  fake_mxnet::Engine::get().wait_for_all();
  layer->expect_running_as_they_are();
  run_step(layer, kTwo, 31);
  run_step(layer, kTwo, 41);
}

/// As an operation that comes before the layer and fails.
void fail(const NDArray& array, const std::string& message) {
  fake_mxnet::Engine::get().push(
      [message](const mxnet::OnComplete& on_complete) {
        const fake_mxnet::Error error(message);
        fake_mxnet::complete(on_complete, &error);
      },
      array.context(), {}, {array.variable()});
}

/// Keeps an array busy, as an operation that has not finished does, until destroyed.
class Busy {
 public:
  explicit Busy(const NDArray& array) {
    fake_mxnet::Engine::get().push(
        [this](const mxnet::OnComplete& on_complete) { begun_.set_value(on_complete); },
        array.context(), {}, {array.variable()}, mxnet::kAsync);
  }
  ~Busy() { fake_mxnet::complete(begun_.get_future().get()); }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::promise<mxnet::OnComplete> begun_;
};

}  // namespace

TEST_CASE_FIXTURE(Library, "faults: what failed before the layer is told there") {
  Layer layer("bn", 3, 2);
  const Batch x(kTwo, 1);
  fail(x.arrays[1], "the network before the layer failed");
  std::vector<Call> calls;  // which keep the group of devices
  {
    const ScopedTimeout timeout(0.2);
    calls = layer.call(x.arrays);
    check_error(calls[0].out, {"forward waited", "Missing: "});
    check_error(calls[1].out, {"the network before the layer failed"});
  }
  check_steps(&layer);
}

TEST_CASE_FIXTURE(Library, "faults: devices fail one after the other") {
  const Layer layer("bn", 3, 4);
  const Layer other("bn", 4, 4);
  const Batch x(std::vector<Shape>(4, {2, 3, 4}), 1);
  const Batch other_x(std::vector<Shape>(4, {2, 4, 4}), 2);
  for (int i = 0; i < 5; ++i) {
    std::vector<Call> calls;
    for (int d = 0; d < 3; ++d) calls.push_back(layer.call(d, x.arrays[d]));
    calls.push_back(other.call(3, other_x.arrays[3]));
    for (const Call& call : calls) check_error(call.out, {"differ: channels"});
  }
  CHECK(fake_mxnet::Engine::get().most_failing_at_once() == 1);
}

TEST_CASE_FIXTURE(Library, "faults: a device that cannot begin fails its peer at once") {
  const Layer layer("bn", 3, 2, {}, {{"inplace", "True"}});
  const Batch x(kTwo, 1);
  const Call peer = layer.call(0, x.arrays[0]);
  const auto inputs = layer.inputs(1, x.arrays[1]);
  const NDArray out(x.arrays[1].shape(), x.arrays[1].dtype(), x.arrays[1].context());
  const auto op = fake_mxnet::Node(layer.attributes).create_operator(device(1), inputs);
  op->forward(inputs, out, true, false, mxnet::kAdd);
  check_error(out, {"inplace=True cannot add"});
  check_error(peer.out,
              {"failed on " + Device{tested_type(), 1}.name(), "inplace=True cannot add"});
}

TEST_CASE_FIXTURE(Library, "faults: an input that is late holds nobody up for good") {
  Layer layer("bn", 3, 2);
  const Batch x(kTwo, 1);
  std::optional<Busy> late(x.arrays[1]);
  const auto calls = layer.call(x.arrays, {1, 0});
  CHECK_FALSE(calls[0].out.variable()->ready_to_read());
  late.reset();
  layer.check_outputs(x.values, calls);
  CHECK(calls[0].out.variable()->ready_to_read());
  layer.check_running();
}

}  // namespace gluon_syncbn::tests

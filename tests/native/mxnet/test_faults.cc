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
  const Batch x(kTwo, 1);
  for (const Attributes& reads_output :
       {Attributes{{"inplace", "True"}}, Attributes{{"act_type", "relu"}, {"shortcut", "True"}}}) {
    const Layer layer("bn", 3, 2, {}, reads_output);
    const auto forward = [&](int index, mxnet::OpReq request) {
      const NDArray& data = x.arrays[static_cast<std::size_t>(index)];
      auto inputs = layer.inputs(index, data);
      if (reads_output.back().first == "shortcut") inputs.insert(inputs.begin() + 3, data);
      const NDArray out(data.shape(), data.dtype(), data.context());
      const auto op = fake_mxnet::Node(layer.attributes).create_operator(device(index), inputs);
      op->forward(inputs, out, true, false, request);
      return out;
    };
    const NDArray peer = forward(0, mxnet::kWrite);
    check_error(forward(1, mxnet::kAdd), {"cannot add to what its output holds"});
    check_error(peer, {"failed on " + Device{tested_type(), 1}.name(), "cannot add to what"});
  }
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

// Devices that do not come, come late, fail or do not fit together; calls that are wrong.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "mxnet/layer.h"
#include "sync/failed_steps.h"

#ifdef GLUON_SYNCBN_FAKE_CUDA
#include "cuda/fake_cuda_control.h"
#endif

namespace gluon_syncbn::tests {
namespace {

/// So that the next step repeats no error.
void drop() { FailedSteps::instance().drop(); }

/// Steps after a fault have numbers that are right.
void check_steps(Layer* layer) {
  fake_mxnet::Engine::get().wait_for_all();
  drop();
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

/// A call whose output holds numbers already.
Call call(const Layer& layer, int index, const NDArray& data, mxnet::OpReq request = mxnet::kWrite,
          bool is_train = true) {
  const auto inputs = layer.inputs(index, data);
  const Call call{fake_mxnet::Node(layer.attributes).create_operator(device(index), inputs), inputs,
                  NDArray(data.shape(), data.context(), Values(data.size(), kBefore))};
  call.op->forward(inputs, call.out, is_train, false, request);
  return call;
}

/// Checks what a failed operation has left, as a program finds it that has caught the error.
void check_left(const NDArray& array, mxnet::OpReq request) {
  Values values;
  try {
    values = array.read();
  } catch (const std::exception&) {
    values = array.read();
  }
  CAPTURE(request);
  CHECK(std::all_of(values.begin(), values.end(), [&](long double value) {
    return request == mxnet::kNull ? value == kBefore : std::isnan(value);
  }));
}

/// Checks that backward fails with this message, and what it leaves.
void check_failed_backward(const Call& call, const std::string& message) {
  check_error(call.gradients[0], {message});
  check_left(call.gradients[0], call.requests.data);
  check_left(call.gradients[1], call.requests.gamma);
  check_left(call.gradients[2], call.requests.beta);
}

constexpr Requests kAllRequests[]{{},
                                  {mxnet::kNull, mxnet::kAdd, mxnet::kWrite},
                                  {mxnet::kAdd, mxnet::kWrite, mxnet::kNull},
                                  {mxnet::kWriteInplace, mxnet::kNull, mxnet::kAdd}};

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
    drop();
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

TEST_CASE_FIXTURE(Library, "faults: a forward pass that fails leaves NaN") {
  const Batch x(kTwo, 1);
  const Batch other_x({{2, 4, 4}, {1, 4, 4}}, 2);
  const Layer layer("bn", 3, 2);
  const Layer other("bn", 4, 2);
  const Layer in_place("in_place", 3, 2, {}, {{"inplace", "True"}});
  for (const mxnet::OpReq request :
       {mxnet::kWrite, mxnet::kWriteInplace, mxnet::kAdd, mxnet::kNull}) {
    const auto check = [request](const Call& call, const std::string& message) {
      check_error(call.out, {message});
      check_left(call.out, request);
    };
    {
      const ScopedTimeout timeout(0.1);
      check(call(layer, 0, x.arrays[0], request), "forward waited");
      drop();
    }
    const Call first = call(layer, 0, x.arrays[0], request);
    check(call(other, 1, other_x.arrays[1], request), "differ: channels");
    check(first, "differ: channels");
    drop();
    if (request != mxnet::kAdd) continue;
    check(call(in_place, 0, x.arrays[0], request), "cannot add to what its output holds");
    check(call(in_place, 0, x.arrays[0], request, false), "cannot add to what its output holds");
  }
  layer.check_running();
  other.check_running();
  in_place.check_running();
}

TEST_CASE_FIXTURE(Library, "faults: a backward pass that fails leaves NaN in wanted gradients") {
  const Batch x(kTwo, 1);
  const Batch dy(kTwo, 2);
  const Layer layer("bn", 3, 2);
  for (const Requests& requests : kAllRequests) {
    auto calls = layer.call(x.arrays);
    {
      const ScopedTimeout timeout(0.1);
      calls[0].backward(dy.arrays[0], requests);
      check_failed_backward(calls[0], "backward waited");
      drop();
    }
    calls = layer.call(x.arrays);
    calls[0].backward(dy.arrays[0], requests);
    calls[1].backward(dy.arrays[0], requests);
    for (const Call& each : calls) check_failed_backward(each, "the gradient of the output is");
    drop();

    const ScopedTimeout timeout(0.1);
    Call failed = layer.call(0, x.arrays[0]);
    check_error(failed.out, {"forward waited"});
    failed.backward(dy.arrays[0], requests);
    check_failed_backward(failed, "backward of a forward pass that failed");
    drop();
  }
}

TEST_CASE_FIXTURE(Library, "faults: gradients of an input that is not recoverable are NaN") {
  const Batch x(kTwo, 1);
  const Batch dy(kTwo, 2);
  Layer layer("bn", 3, 2, {}, {{"inplace", "True"}});
  for (int d = 0; d < 2; ++d) {
    layer.parameters[static_cast<std::size_t>(d)][0] = NDArray({3}, device(d), {1, 0, 1});
  }
  for (const Requests& requests : kAllRequests) {
    auto calls = layer.call(x.arrays);
    for (std::size_t d = 0; d < 2; ++d) calls[d].backward(dy.arrays[d], requests);
    for (const Call& each : calls) check_failed_backward(each, "channel 1 has gamma 0");
    drop();
  }
}

#ifdef GLUON_SYNCBN_FAKE_CUDA
TEST_CASE_FIXTURE(Library, "faults: a GPU that takes no NaN still gives the error") {
  if (tested_type() != "gpu") return;
  const Layer layer("bn", 3, 2);
  const Batch x(kTwo, 1);
  const ScopedTimeout timeout(0.1);
  for (const char* fault : {"cuMemsetD8Async#1+=701", "memset"}) {
    const Faults faults(fault);
    check_error(layer.call(0, x.arrays[0]).out, {"forward waited"});
    fake_mxnet::Engine::get().wait_for_all();
    CHECK(fakeCudaClearFaults() == 1);
    drop();
  }
}
#endif

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

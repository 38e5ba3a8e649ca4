// What faults of devices leave in MXNet's arrays and engine; sync/test_faults.cc has what all are
// told.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <optional>
#include <regex>
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

/// The first line of the error that reading throws, but for times and numbers of rounds.
std::string error_of(const NDArray& array) {
  try {
    array.read();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return std::regex_replace(text.substr(0, text.find('\n')),
                              std::regex("\\b[0-9.]+ s\\b|round \\d+"), "N");
  }
  return "none";
}

const std::string kAlone = "SyncBatchNorm 'bn': ";
const std::string kRound = "SyncBatchNorm 'bn' N ";
const std::string kWaited = " waited N for all of 2 devices (num_devices=2).";

const std::string kNotRecoverable =
    kAlone +
    "inplace=True: channel 1 has gamma 0 and beta 8, so the input is not recoverable from the "
    "output: |gamma| should be above 0.00195312. Without inplace=True the layer takes any gamma";

std::string name(int index) { return Device{tested_type(), index}.name(); }

/// A call whose output holds numbers already.
Call call(const Layer& layer, int index, const NDArray& data, mxnet::OpReq request = mxnet::kWrite,
          bool is_train = true) {
  auto inputs = layer.inputs(index, data);
  if (layer.attributes.back().first == "shortcut") inputs.insert(inputs.begin() + 3, data);
  const Call call{fake_mxnet::Node(layer.attributes).create_operator(device(index), inputs), inputs,
                  NDArray(data.shape(), data.context(), Values(data.size(), kBefore))};
  call.op->forward(inputs, call.out, is_train, false, request);
  return call;
}

/// Checks that reading throws one of these errors, and what a program finds that has caught it.
void check_failed(const NDArray& array, const std::vector<std::string>& errors,
                  mxnet::OpReq request = mxnet::kWrite) {
  const std::string error = error_of(array);
  CAPTURE(error);
  CAPTURE(request);
  CHECK(std::count(errors.begin(), errors.end(), error) == 1);
  const Values values = array.read();
  CHECK(std::all_of(values.begin(), values.end(), [&](long double value) {
    return request == mxnet::kNull ? value == kBefore : std::isnan(value);
  }));
}

/// As check_failed(), for the gradients.
void check_failed_backward(const Call& call, const std::string& error) {
  check_failed(call.gradients[0], {error}, call.requests.data);
  check_failed(call.gradients[1], {error, "none"}, call.requests.gamma);
  check_failed(call.gradients[2], {error, "none"}, call.requests.beta);
}

}  // namespace

TEST_CASE_FIXTURE(Library, "faults: what failed before the layer is told there") {
  Layer layer("bn", 3, 2);
  const Batch x(kTwo, 1);
  fail(x.arrays[1], "the network before the layer failed");
  std::vector<Call> calls;  // which keep the group of devices
  {
    const ScopedTimeout timeout(0.2);
    calls = layer.call(x.arrays);
    CHECK(error_of(calls[0].out) == kRound + "forward" + kWaited);
    CHECK(error_of(calls[1].out) == "the network before the layer failed");
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

TEST_CASE_FIXTURE(Library, "faults: a forward pass that fails leaves NaN") {
  const Batch x(kTwo, 1);
  const Batch other_x({{2, 4, 4}, {1, 4, 4}}, 2);
  const Layer layer("bn", 3, 2);
  const Layer other("bn", 4, 2);
  for (const mxnet::OpReq request :
       {mxnet::kWrite, mxnet::kWriteInplace, mxnet::kAdd, mxnet::kNull}) {
    {
      const ScopedTimeout timeout(0.1);
      const Call alone = call(layer, 0, x.arrays[0], request);
      check_failed(alone.out, {kRound + "forward" + kWaited}, request);
      drop();
    }
    const Call first = call(layer, 0, x.arrays[0], request);
    const Call second = call(other, 1, other_x.arrays[1], request);
    for (const Call& each : {first, second}) {
      const std::string differ = kRound + "forward: devices ";  // the first to come is named first
      check_failed(each.out,
                   {differ + name(0) + " and " + name(1) + " differ: channels 3 and 4",
                    differ + name(1) + " and " + name(0) + " differ: channels 4 and 3"},
                   request);
    }
    drop();
  }
  layer.check_running();
  other.check_running();
}

TEST_CASE_FIXTURE(Library, "faults: a device that cannot begin fails its peer at once") {
  const Batch x(kTwo, 1);
  for (const Attributes& reads_output :
       {Attributes{{"inplace", "True"}}, Attributes{{"act_type", "relu"}, {"shortcut", "True"}}}) {
    const Layer layer("bn", 3, 2, {}, reads_output);
    const std::string error = "cannot add to what its output holds: backward reads the output";
    const Call peer = call(layer, 0, x.arrays[0]);
    check_failed(call(layer, 1, x.arrays[1], mxnet::kAdd).out, {kAlone + error}, mxnet::kAdd);
    check_failed(peer.out, {kRound + "forward: failed on " + name(1) + ": " + error});
    check_failed(call(layer, 1, x.arrays[1], mxnet::kAdd, false).out, {kAlone + error},
                 mxnet::kAdd);
    drop();
    layer.check_running();
  }
}

TEST_CASE_FIXTURE(Library, "faults: a backward pass that fails leaves NaN in wanted gradients") {
  const Batch x(kTwo, 1);
  const Batch dy(kTwo, 2);
  const Layer layer("bn", 3, 2);
  Layer in_place("bn", 3, 2, {}, {{"inplace", "True"}});
  for (int d = 0; d < 2; ++d) {
    auto& own = in_place.parameters[static_cast<std::size_t>(d)];
    own[0] = NDArray({3}, device(d), {1, 0, 1});
    own[1] = NDArray({3}, device(d), {0, 8, 0});
  }
  constexpr Requests kAllRequests[]{{},
                                    {mxnet::kNull, mxnet::kAdd, mxnet::kWrite},
                                    {mxnet::kAdd, mxnet::kWrite, mxnet::kNull},
                                    {mxnet::kWriteInplace, mxnet::kNull, mxnet::kAdd}};
  for (const Requests& requests : kAllRequests) {
    auto calls = layer.call(x.arrays);
    {
      const ScopedTimeout timeout(0.1);
      calls[0].backward(dy.arrays[0], requests);
      check_failed_backward(calls[0], kRound + "backward" + kWaited);
      drop();
    }
    calls = layer.call(x.arrays);
    for (Call& each : calls) each.backward(dy.arrays[0], requests);
    const std::string differs =
        "the gradient of the output is float32 of shape (2, 3, 4) but the output is float32 of "
        "shape (1, 3, 4)";
    check_failed_backward(calls[0], kRound + "backward: failed on " + name(1) + ": " + differs);
    check_failed_backward(calls[1], kAlone + differs);
    drop();
    calls = in_place.call(x.arrays);
    for (std::size_t d = 0; d < 2; ++d) calls[d].backward(dy.arrays[d], requests);
    for (const Call& each : calls) check_failed_backward(each, kNotRecoverable);
    drop();

    const ScopedTimeout timeout(0.1);
    Call failed = layer.call(0, x.arrays[0]);
    const std::string error = kRound + "forward" + kWaited;
    CHECK(error_of(failed.out) == error);
    failed.backward(dy.arrays[0], requests);
    check_failed_backward(failed, kAlone + "backward of a forward pass that failed: " + error);
    drop();
  }
}

#ifdef GLUON_SYNCBN_FAKE_CUDA
TEST_CASE_FIXTURE(Library, "faults: a GPU that takes no NaN still gives the error" *
                               doctest::skip(tested_type() != "gpu")) {
  const Layer layer("bn", 3, 2);
  const Batch x(kTwo, 1);
  const ScopedTimeout timeout(0.1);
  for (const char* fault : {"cuMemsetD8Async#1+=701", "memset"}) {
    const Faults faults(fault);
    CHECK(error_of(layer.call(0, x.arrays[0]).out) == kRound + "forward" + kWaited);
    fake_mxnet::Engine::get().wait_for_all();
    CHECK(fakeCudaClearFaults() == 1);
    drop();
  }
}
#endif

TEST_CASE_FIXTURE(Library, "faults: an input that is late keeps no device waiting for good") {
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

// Devices that do not come, come late, fail or do not fit together; calls that are wrong.

#include <doctest/doctest.h>

#include <cstdlib>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "mxnet/layer.h"

namespace gluon_syncbn::tests {
namespace {

constexpr int kDType = mxnet::kFloat32;
constexpr double kShort = 0.2;  // seconds
const std::vector<Shape> kTwo{{2, 3, 4}, {1, 3, 4}};

/// Steps after a fault have numbers that are right.
void check_steps(Layer* layer) {
  fake_mxnet::Engine::get().wait_for_all();
  layer->expect_running_as_they_are();
  run_step(layer, kTwo, kDType, 31);
  run_step(layer, kTwo, kDType, 41);
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

TEST_CASE_FIXTURE(Library, "faults: a device that never calls") {
  Layer layer("bn", 3, kDType, 2);
  check_steps(&layer);
  const Batch x(kTwo, kDType, 1);
  {
    const ScopedTimeout timeout(kShort);
    const Call call = layer.call(0, x.arrays[0]);
    check_error(call.out,
                {"SyncBatchNorm 'bn'", "forward waited", "Came: " + name_of(0), "Missing: "});
  }
  check_steps(&layer);
}

TEST_CASE_FIXTURE(Library, "faults: a device that does not go backward") {
  Layer layer("bn", 3, kDType, 2);
  const Batch x(kTwo, kDType, 1);
  {
    const ScopedTimeout timeout(kShort);
    auto calls = layer.call(x.arrays);
    for (const Call& call : calls) static_cast<void>(call.out.read());
    calls[1].backward(x.arrays[1]);
    check_error(calls[1].gradients[0],
                {"backward waited", "Came: " + name_of(1), "Missing: " + name_of(0)});
  }
  check_steps(&layer);
}

TEST_CASE_FIXTURE(Library, "faults: what failed before the layer is told there") {
  Layer layer("bn", 3, kDType, 2);
  const Batch x(kTwo, kDType, 1);
  fail(x.arrays[1], "the network before the layer failed");
  {
    const ScopedTimeout timeout(kShort);
    const auto calls = layer.call(x.arrays);
    check_error(calls[0].out, {"forward waited", "Missing: "});
    check_error(calls[1].out, {"the network before the layer failed"});
  }
  check_steps(&layer);
}

TEST_CASE_FIXTURE(Library, "faults: devices that disagree are both told at once") {
  const auto check = [](const Attributes& attributes, int channels, int dtype,
                        const std::string& difference) {
    CAPTURE(difference);
    Layer layer("bn", 3, kDType, 2);
    const Layer other("bn", channels, dtype, 2, {}, attributes);
    const Batch x(kTwo, kDType, 1);
    const Batch other_x({{2, channels, 4}, {2, channels, 4}}, dtype, 2);
    Call first = layer.call(0, x.arrays[0]);
    const Call second = other.call(1, other_x.arrays[1]);
    // Backward is skipped: it depends on the state that the forward pass has failed in.
    first.backward(x.arrays[0]);
    check_error(first.gradients[0], {"differ: " + difference});
    check_error(second.out, {"differ: " + difference});
    check_steps(&layer);
  };
  check({{"eps", "0.01"}}, 3, kDType, "eps");
  check({{"momentum", "0.5"}}, 3, kDType, "momentum");
  check({}, 4, kDType, "channels");
  check({}, 3, mxnet::kFloat64, "dtype");
}

TEST_CASE_FIXTURE(Library, "faults: devices fail one after the other") {
  const Layer layer("bn", 3, kDType, 4);
  const Layer other("bn", 4, kDType, 4);
  const Batch x(std::vector<Shape>(4, {2, 3, 4}), kDType, 1);
  const Batch other_x(std::vector<Shape>(4, {2, 4, 4}), kDType, 2);
  for (int i = 0; i < 5; ++i) {
    std::vector<Call> calls;
    for (int d = 0; d < 3; ++d) calls.push_back(layer.call(d, x.arrays[d]));
    calls.push_back(other.call(3, other_x.arrays[3]));
    for (const Call& call : calls) check_error(call.out, {"differ: channels"});
  }
  CHECK(fake_mxnet::Engine::get().most_failing_at_once() == 1);
}

TEST_CASE_FIXTURE(Library, "faults: a head gradient unlike the output fails all devices at once") {
  Layer layer("bn", 3, kDType, 2);
  const Batch x(kTwo, kDType, 1);
  auto calls = layer.call(x.arrays);
  const NDArray wrong({1, 3, 5}, kDType, device(1));
  calls[0].backward(x.arrays[0]);
  calls[1].backward(wrong);
  check_error(calls[0].gradients[0], {"failed on " + name_of(1), "(1, 3, 5)"});
  check_error(calls[1].gradients[0], {"gradient of the output", "(1, 3, 5)", "(1, 3, 4)"});
  check_steps(&layer);
}

TEST_CASE_FIXTURE(Library, "faults: more devices than num_devices") {
  const Layer layer("bn", 3, kDType, 3, {}, {{"num_devices", "2"}});
  const Batch x({{2, 3, 4}, {1, 3, 4}, {1, 3, 4}}, kDType, 1);
  const std::vector<Call> calls{layer.call(0, x.arrays[0]), layer.call(1, x.arrays[1])};
  for (const Call& call : calls) static_cast<void>(call.out.read());
  check_error(layer.call(2, x.arrays[2]).out, {"SyncBatchNorm 'bn'", name_of(2)});
}

TEST_CASE_FIXTURE(Library, "faults: a device outside of all groups") {
  const Layer layer("bn", 3, kDType, 4, {}, {{"sync_group_size", "2"}, {"device_ids", "0,1,4,5"}});
  const Batch x({{2, 3, 4}, {1, 3, 4}, {1, 3, 4}}, kDType, 1);
  check_error(layer.call(2, x.arrays[2]).out, {name_of(2), "in no group"});
}

TEST_CASE_FIXTURE(Library, "faults: an input that is late holds nobody up for good") {
  Layer layer("bn", 3, kDType, 2);
  const Batch x(kTwo, kDType, 1);
  std::optional<Busy> late(x.arrays[1]);
  const auto calls = layer.call(x.arrays, {1, 0});
  CHECK_FALSE(calls[0].out.variable()->ready_to_read());
  late.reset();
  layer.check_outputs(x.values, calls);
  CHECK(calls[0].out.variable()->ready_to_read());
  layer.check_running();
}

TEST_CASE_FIXTURE(Library, "faults: a call whose input is ready too late joins the failed round") {
  Layer layer("bn", 3, kDType, 2);
  const Batch x(kTwo, kDType, 1);
  {
    std::optional<Busy> late(x.arrays[1]);
    const ScopedTimeout timeout(kShort);
    const auto calls = layer.call(x.arrays, {1, 0});
    check_error(calls[0].out, {"forward waited"});
    late.reset();
    check_error(calls[1].out, {"forward waited", "Came: " + name_of(0)});
  }
  check_steps(&layer);
}

TEST_CASE_FIXTURE(Library, "faults: what a property throws comes out of the call") {
  const auto check = [](const Attributes& attributes, int channels, const Shape& shape,
                        const std::string& message) {
    const Layer layer("bn", channels, kDType, 2, {}, attributes);
    const NDArray x(shape, kDType, device(0));
    for (int i = 0; i < 2; ++i) check_error([&] { layer.call(0, x); }, {message});
  };
  check({{"momentum", "often"}}, 3, {2, 3}, "often");
  check({}, 4, {2, 3, 4}, "gamma has shape (4,) where (3,) is expected");
  check({{"process_set", "77"}}, 3, {2, 3}, "process set 77 is not known");
}

TEST_CASE_FIXTURE(Library, "faults: mirroring is refused on all devices") {
  Layer layer("bn", 3, kDType, 2);
  const Batch x(kTwo, kDType, 1);
  setenv("MXNET_BACKWARD_DO_MIRROR", "1", 1);
  const auto calls = layer.call(x.arrays);
  fake_mxnet::Engine::get().wait_for_all();
  unsetenv("MXNET_BACKWARD_DO_MIRROR");
  for (const Call& call : calls) check_error(call.out, {"MXNET_BACKWARD_DO_MIRROR"});
  check_steps(&layer);
}

}  // namespace gluon_syncbn::tests

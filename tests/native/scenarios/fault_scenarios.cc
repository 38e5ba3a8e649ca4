// Devices that do not come, come late, fail or do not fit together; calls that are wrong.

#include <cstdlib>
#include <string>
#include <vector>

#include "scenarios/host_api.h"
#include "scenarios/norm.h"
#include "scenarios/scenario.h"

namespace gluon_syncbn::scenarios {
namespace {

constexpr int kDType = host::kFloat32;
constexpr double kShort = 0.2;  // seconds
const std::vector<Shape> kShapes{{2, 3, 4}, {1, 3, 4}};

std::string name_of(int index) { return device(index).name(); }

Norm make(Session& session, int num_devices = 2, const NormOptions& options = {}) {
  return Norm(session.key("bn"), 3, kDType, num_devices, options);
}

/// Two steps, with numbers that are right.
void steps_work(Session& session, Norm& norm) {
  step(session, norm, kShapes, kDType, 31);
  step(session, norm, kShapes, kDType, 41);
}

/// The running statistics are what a failed step has left.
void expect_running_of(Norm& norm) {
  norm.expected.running_mean = norm.running_mean[0].read();
  norm.expected.running_var = norm.running_var[0].read();
}

void a_device_that_never_calls(Session& session) {
  Norm norm = make(session);
  steps_work(session, norm);
  const Batch x(kShapes, kDType, 1);
  {
    const Timeout timeout(kShort);
    const Recorded recorded;
    const Array out = norm(0, x[0]);
    require_error([&] { out.read(); },
                  {session.key("bn"), "forward waited", "Came: " + name_of(0), "Missing: "});
  }
  steps_work(session, norm);
}

void a_device_that_does_not_go_backward(Session& session) {
  Norm norm = make(session);
  Batch x(kShapes, kDType, 1);
  const Batch dy(kShapes, kDType, 2);
  x.mark(host::kWrite);
  {
    const Timeout timeout(kShort);
    std::vector<Array> outputs;
    {
      const Recorded recorded;
      outputs = norm(x.arrays);
    }
    for (const Array& output : outputs) output.read();
    backward({&outputs[1]}, {&dy[1]});
    require_error([&] { x.gradients[1].read(); },
                  {"backward waited", "Came: " + name_of(1), "Missing: " + name_of(0)});
  }
  expect_running_of(norm);
  steps_work(session, norm);
}

/// What fails before the layer on one device is told there; the other one waits in vain.
void an_input_that_failed(Session& session) {
  Norm norm = make(session);
  const Batch x(kShapes, kDType, 1);
  fail(x[1], device(1), "the network before the layer failed");
  {
    const Timeout timeout(kShort);
    const Recorded recorded;
    const auto outputs = norm(x.arrays);
    require_error([&] { outputs[0].read(); }, {"forward waited", "Missing: "});
    require_error([&] { outputs[1].read(); }, {"the network before the layer failed"});
  }
  expect_running_of(norm);
  steps_work(session, norm);
}

/// Both are told at once, also the gradients that depend on it.
Scenario disagreement(const std::string& name, const Norm::Attributes& of_second, int channels,
                      int dtype, const std::string& difference) {
  return {name, [=](Session& session) {
            Norm first = make(session);
            Norm second(session.key("bn"), channels, dtype, 2, {}, of_second);
            const Array x({2, 3, 4}, kDType, device(0));
            const Array other({2, channels, 4}, dtype, device(1));
            const Array dx({2, 3, 4}, kDType, device(0));
            x.fill(1);
            other.fill(2);
            dx.fill(0);
            mark_variable(x, host::kWrite, dx);
            std::vector<Array> outputs;
            {
              const Recorded recorded;
              outputs.push_back(first(0, x));
              outputs.push_back(second(1, other));
            }
            backward({&outputs[0]}, {&x});
            // Backward was skipped: it depends on the state that the forward pass has failed in.
            require_error([&] { dx.read(); }, {"differ: " + difference});
            require_error([&] { outputs[1].read(); }, {"differ: " + difference});
            outputs.clear();
            check(host().wait_all());
            steps_work(session, first);
          }};
}

void too_many_devices(Session& session) {
  const std::vector<Shape> shapes{{2, 3, 4}, {1, 3, 4}, {1, 3, 4}};
  const Norm norm(session.key("bn"), 3, kDType, 3, {}, {{"num_devices", "2"}});
  Batch x(shapes, kDType, 1);
  x.mark(host::kWrite);  // else nothing remembers the devices that have met
  const Recorded recorded;
  const auto first = norm(0, x[0]);
  const auto second = norm(1, x[1]);
  first.read();
  second.read();
  const auto third = norm(2, x[2]);
  require_error([&] { third.read(); }, {session.key("bn"), name_of(2)});
}

/// An input that is not ready keeps the operator from running, and nothing else.
void an_input_that_is_late(Session& session) {
  Norm norm = make(session);
  const Batch x(kShapes, kDType, 1);
  void* hold = adapter().hold(x[1].handle());
  std::vector<Array> outputs;
  {
    const Recorded recorded;
    outputs = norm(x.arrays, {1, 0});
  }
  require(adapter().is_ready(outputs[0].handle()) == 0, "the first device waits for the second");
  adapter().release(hold);
  const auto expected = normalize(x.values, norm.expected, norm.options, true);
  require_close("output", outputs, expected.out.values);
  norm.expected.running_mean = expected.running_mean;
  norm.expected.running_var = expected.running_var;
  require_running(norm);
}

/// A call that was made in time but whose input was not ready joins the round that has failed.
void an_input_that_is_too_late(Session& session) {
  Norm norm = make(session);
  const Batch x(kShapes, kDType, 1);
  void* hold = adapter().hold(x[1].handle());
  std::string message;
  {
    const Timeout timeout(kShort);
    std::vector<Array> outputs;
    {
      const Recorded recorded;
      outputs = norm(x.arrays, {1, 0});
    }
    message = error_of([&] { outputs[0].read(); });
    adapter().set_timeout(Timeout::kUsual);
    adapter().release(hold);
    require_error([&] { outputs[1].read(); }, {"forward waited", "Came: " + name_of(0)});
  }
  expect_running_of(norm);
  steps_work(session, norm);
}

/// What a property throws comes out of the call.
Scenario wrong_call(const std::string& name, const Norm::Attributes& attributes, const Shape& shape,
                    int dtype, int channels, int parameter_dtype,
                    const std::vector<std::string>& message) {
  return {name, [=](Session& session) {
            const Norm norm(session.key("bn"), channels, parameter_dtype, 2, {}, attributes);
            const Array x(shape, dtype, device(0));
            x.fill(1);
            for (int i = 0; i < 2; ++i) require_error([&] { norm(0, x); }, message);
          }};
}

void mirroring(Session& session) {
  Norm norm = make(session);
  const Batch x(kShapes, kDType, 1);
  {
    const Recorded recorded;
    setenv("MXNET_BACKWARD_DO_MIRROR", "1", 1);
    const auto outputs = norm(x.arrays);
    const auto first = error_of([&] { outputs[0].read(); });
    const auto second = error_of([&] { outputs[1].read(); });
    unsetenv("MXNET_BACKWARD_DO_MIRROR");
    require(first.find("MXNET_BACKWARD_DO_MIRROR") != std::string::npos && first == second,
            "both devices tell");
  }
  check(host().wait_all());
  steps_work(session, norm);
}

/// The end of the process. Must be the last scenario.
void the_process_ends(Session& session) {
  Norm norm = make(session);
  const Batch x(kShapes, kDType, 1);
  const Recorded recorded;
  const Array waiting = norm(0, x[0]);
  require(adapter().is_ready(waiting.handle()) == 0, "the device waits");
  const std::string reason = adapter().retire();
  require_error([&] { waiting.read(); }, {reason});
  const Array late = norm(1, x[1]);
  require_error([&] { late.read(); }, {reason});
}

}  // namespace

std::vector<Scenario> fault_scenarios() {
  return {
      {"a device that never calls", a_device_that_never_calls},
      {"a device that does not go backward", a_device_that_does_not_go_backward},
      {"an input that failed", an_input_that_failed},
      disagreement("devices disagree on eps", {{"eps", "0.01"}}, 3, kDType, "eps"),
      disagreement("devices disagree on momentum", {{"momentum", "0.5"}}, 3, kDType, "momentum"),
      disagreement("devices disagree on channels", {}, 4, kDType, "channels"),
      disagreement("devices disagree on dtype", {}, 3, host::kFloat64, "dtype"),
      {"too many devices", too_many_devices},
      {"an input that is late", an_input_that_is_late},
      {"an input that is too late", an_input_that_is_too_late},
      wrong_call("a wrong attribute", {{"momentum", "often"}}, {2, 3}, kDType, 3, kDType,
                 {"momentum", "often"}),
      wrong_call("an unknown attribute", {{"epsilon", "1"}}, {2, 3}, kDType, 3, kDType,
                 {"epsilon"}),
      wrong_call("wrong channels", {}, {2, 3, 4}, kDType, 4, kDType,
                 {"gamma has shape (4,) where (3,) is expected"}),
      wrong_call("too few dimensions", {}, {3}, kDType, 3, kDType, {"data has shape (3,)"}),
      wrong_call("a wrong dtype", {}, {2, 3}, host::kInt32, 3, kDType, {"data of int32"}),
      wrong_call("a wrong dtype of parameters", {}, {2, 3}, kDType, 3, host::kFloat64,
                 {"gamma is float64"}),
      {"mirroring", mirroring},
      {"the process ends", the_process_ends},
  };
}

}  // namespace gluon_syncbn::scenarios

// One layer, called once in a step.

#include <string>
#include <vector>

#include "scenarios/host_api.h"
#include "scenarios/norm.h"
#include "scenarios/scenario.h"

namespace gluon_syncbn::scenarios {
namespace {

struct Shards {
  std::vector<Shape> shapes;
  int channels;
  int axis = 1;
};

const Shards kTwo{{{2, 3, 4, 5}, {2, 3, 4, 5}}, 3};
const Shards kUneven{{{1, 5, 3, 3}, {4, 5, 3, 3}, {2, 5, 3, 3}}, 5};
const Shards kFour{{{1, 4, 7}, {1, 4, 7}, {1, 4, 7}, {1, 4, 7}}, 4};
const Shards kChannelsLast{{{2, 3, 5, 6}, {3, 3, 5, 6}}, 6, -1};
const Shards kVolumes{{{2, 3, 2, 3, 2}, {1, 3, 2, 3, 2}}, 3};
const Shards kOne{{{4, 3, 5}}, 3};

Norm make(Session& session, const Shards& shards, int dtype, NormOptions options = {}) {
  options.axis = shards.axis;
  return Norm(session.key("bn"), shards.channels, dtype, static_cast<int>(shards.shapes.size()),
              options);
}

Scenario steps(const std::string& name, const Shards& shards, int dtype, const Step& how = {},
               const NormOptions& options = {}, double mean = 0) {
  return {name, [=](Session& session) {
            Norm norm = make(session, shards, dtype, options);
            step(session, norm, shards.shapes, dtype, 7, how, mean);
          }};
}

Step requests(OpReq data, OpReq gamma, OpReq beta) { return {true, {}, data, gamma, beta, 0.5}; }

/// Of several steps each starts from what the last has left.
void several_steps(Session& session) {
  Norm norm = make(session, kUneven, host::kFloat32);
  for (std::uint32_t i = 0; i < 4; ++i) step(session, norm, kUneven.shapes, host::kFloat32, 10 * i);
}

/// Devices come in another order in every step.
void devices_in_any_order(Session& session) {
  Norm norm = make(session, kUneven, host::kFloat32);
  std::uint32_t seed = 0;
  for (const auto& order : {std::vector<int>{2, 1, 0}, {1, 2, 0}, {0, 2, 1}}) {
    Step how;
    how.order = order;
    step(session, norm, kUneven.shapes, host::kFloat32, seed += 10, how);
  }
}

/// Devices 0 and 2 are one batch, 3 and 1 another.
void groups_of_devices(Session& session) {
  const std::vector<std::vector<std::size_t>> groups{{0, 2}, {3, 1}};
  Norm norm(session.key("bn"), kFour.channels, host::kFloat32, 4, {},
            {{"sync_group_size", "2"}, {"device_ids", "0,2,3,1"}});
  Batch x(kFour.shapes, host::kFloat32, 5);
  const Batch dy(kFour.shapes, host::kFloat32, 6);
  x.mark(host::kWrite);
  norm.mark(host::kWrite, host::kWrite);
  std::vector<Array> outputs;
  {
    const Recorded recorded;
    outputs = norm(x.arrays, {3, 2, 1, 0});
  }
  backward(pointers(outputs), pointers(dy.arrays));

  const std::size_t devices = x.arrays.size();
  std::vector<Values> out(devices);
  std::vector<Values> mean(devices);
  std::vector<Values> var(devices);
  NormGradients expected{{}, std::vector<Values>(devices), std::vector<Values>(devices)};
  expected.data.values.resize(devices);
  for (const auto& group : groups) {
    Tensor data;
    Tensor gradient;
    for (const std::size_t d : group) {
      data.shapes.push_back(x.values.shapes[d]);
      data.values.push_back(x.values.values[d]);
      gradient.values.push_back(dy.values.values[d]);
    }
    const auto forward = normalize(data, norm.expected, norm.options, true);
    const auto back = gradients(data, gradient, forward, norm.expected, norm.options);
    for (std::size_t i = 0; i < group.size(); ++i) {
      const std::size_t d = group[i];
      out[d] = forward.out.values[i];
      mean[d] = forward.running_mean;
      var[d] = forward.running_var;
      expected.data.values[d] = back.data.values[i];
      expected.gamma[d] = back.gamma[i];
      expected.beta[d] = back.beta[i];
    }
  }
  require_close("output", outputs, out);
  require_close("gradient of the data", x.gradients, expected.data.values);
  require_close("gradient of gamma", norm.gamma_gradient, expected.gamma);
  require_close("gradient of beta", norm.beta_gradient, expected.beta);
  require_close("running mean", norm.running_mean, mean);
  require_close("running var", norm.running_var, var);
  session.report("output", outputs);
  norm.report(session, "layer");
}

/// Without a graph operators are gone as soon as they have run.
void inference_without_a_graph(Session& session) {
  const Norm norm = make(session, kTwo, host::kFloat32);
  const Batch x(kTwo.shapes, host::kFloat32, 3);
  const auto outputs = norm(x.arrays);
  require_close("output", outputs,
                normalize(x.values, norm.expected, norm.options, false).out.values);
  require_running(norm);
  session.report("output", outputs);
}

void training_without_a_graph(Session& session) {
  Norm norm = make(session, kTwo, host::kFloat32);
  const Batch x(kTwo.shapes, host::kFloat32, 3);
  for (int i = 0; i < 3; ++i) {
    std::vector<Array> outputs;
    {
      const Recorded train_mode(false, true);
      outputs = norm(x.arrays);
    }
    const auto expected = normalize(x.values, norm.expected, norm.options, true);
    norm.expected.running_mean = expected.running_mean;
    norm.expected.running_var = expected.running_var;
    require_close("output", outputs, expected.out.values);
    session.report("output", outputs);
  }
  require_running(norm);
}

/// A graph is recorded, but nothing in it needs a gradient.
void training_without_variables(Session& session) {
  Norm norm = make(session, kTwo, host::kFloat64);
  const Batch x(kTwo.shapes, host::kFloat64, 4);
  const Recorded recorded;
  const auto outputs = norm(x.arrays);
  const auto expected = normalize(x.values, norm.expected, norm.options, true);
  require_close("output", outputs, expected.out.values);
}

}  // namespace

std::vector<Scenario> training_scenarios() {
  NormOptions fix_gamma;
  fix_gamma.fix_gamma = true;
  NormOptions global;
  global.use_global_stats = true;
  NormOptions other;
  other.eps = 1e-3;
  other.momentum = 0.5;
  Step predict;
  predict.is_train = false;
  using host::kAdd;
  using host::kNull;
  using host::kWrite;
  return {
      steps("a step on two devices", kTwo, host::kFloat32),
      steps("uneven shards", kUneven, host::kFloat32),
      steps("four devices with one sample each", kFour, host::kFloat32),
      steps("float64", kUneven, host::kFloat64),
      steps("float16", kTwo, host::kFloat16),
      steps("channels last", kChannelsLast, host::kFloat32),
      steps("volumes", kVolumes, host::kFloat64),
      steps("one device", kOne, host::kFloat32),
      steps("data far from zero", kTwo, host::kFloat64, {}, {}, 1000),
      steps("another eps and momentum", kTwo, host::kFloat32, {}, other),
      steps("gradients are added", kUneven, host::kFloat32, requests(kAdd, kAdd, kAdd)),
      steps("only the data's gradient", kTwo, host::kFloat32, requests(kWrite, kNull, kNull)),
      steps("only gamma's gradient", kTwo, host::kFloat32, requests(kNull, kAdd, kNull)),
      steps("only beta's gradient", kTwo, host::kFloat32, requests(kNull, kNull, kWrite)),
      steps("fixed gamma", kTwo, host::kFloat32, {}, fix_gamma),
      steps("global statistics", kTwo, host::kFloat32, {}, global),
      steps("backward through inference", kTwo, host::kFloat32, predict),
      {"several steps", several_steps},
      {"devices in any order", devices_in_any_order},
      {"groups of devices", groups_of_devices},
      {"inference without a graph", inference_without_a_graph},
      {"training without a graph", training_without_a_graph},
      {"training without variables", training_without_variables},
  };
}

}  // namespace gluon_syncbn::scenarios

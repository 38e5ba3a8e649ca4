// Several uses of layers in one step, and graphs that are kept, dropped or used twice.

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "scenarios/host_api.h"
#include "scenarios/norm.h"
#include "scenarios/scenario.h"

namespace gluon_syncbn::scenarios {
namespace {

constexpr int kDType = host::kFloat32;
const std::vector<Shape> kShapes{{2, 3, 4}, {1, 3, 4}};

NormOutput expect_forward(Norm& norm, const Tensor& x) {
  NormOutput output = normalize(x, norm.expected, norm.options, true);
  norm.expected.running_mean = output.running_mean;
  norm.expected.running_var = output.running_var;
  return output;
}

void check_parameters(const Norm& norm, const NormGradients& expected, double before = 0) {
  require_close("gradient of gamma", norm.gamma_gradient, expected.gamma, before);
  require_close("gradient of beta", norm.beta_gradient, expected.beta, before);
  require_running(norm);
}

/// Every layer feeds the next.
void a_chain(Session& session) {
  std::vector<Norm> norms;
  for (const char* name : {"bn1", "bn2", "bn3"})
    norms.emplace_back(session.key(name), 3, kDType, 2);
  Batch x(kShapes, kDType, 1);
  const Batch dy(kShapes, kDType, 2);
  x.mark(host::kWrite);
  std::vector<std::vector<Array>> outputs;
  {
    const Recorded recorded;
    for (Norm& norm : norms) {
      norm.mark(host::kWrite, host::kWrite);
      outputs.push_back(norm(outputs.empty() ? x.arrays : outputs.back()));
    }
  }
  backward(pointers(outputs.back()), pointers(dy.arrays));

  std::vector<Tensor> inputs{x.values};
  std::vector<NormOutput> expected;
  for (Norm& norm : norms) {
    expected.push_back(expect_forward(norm, inputs.back()));
    inputs.push_back(expected.back().out);
  }
  require_close("output", outputs.back(), inputs.back().values);
  Tensor gradient = dy.values;
  for (std::size_t i = norms.size(); i-- > 0;) {
    const auto all =
        gradients(inputs[i], gradient, expected[i], norms[i].expected, norms[i].options);
    check_parameters(norms[i], all);
    norms[i].report(session, "layer");
    gradient = all.data;
  }
  require_close("gradient of the data", x.gradients, gradient.values);
  session.report("output", outputs.back());
  session.report("data gradient", x.gradients);
}

/// Layers on one input, called in another order on each device.
void branches(Session& session) {
  constexpr std::size_t kBranches = 5;
  std::vector<Norm> norms;
  for (std::size_t i = 0; i < kBranches; ++i) {
    norms.emplace_back(session.key("bn" + std::to_string(i)), 3, kDType, 2);
    norms.back().mark(host::kWrite, host::kWrite);
  }
  Batch x(kShapes, kDType, 1);
  x.mark(host::kAdd, 0.5);
  std::vector<std::vector<Array>> outputs(kBranches);
  {
    const Recorded recorded;
    std::vector<std::vector<Array>> of_device(2);
    for (std::size_t i = 0; i < kBranches; ++i) of_device[0].push_back(norms[i](0, x[0]));
    for (std::size_t i = kBranches; i-- > 0;) of_device[1].push_back(norms[i](1, x[1]));
    for (std::size_t i = 0; i < kBranches; ++i) {
      outputs[i].push_back(std::move(of_device[0][i]));
      outputs[i].push_back(std::move(of_device[1][kBranches - 1 - i]));
    }
  }
  std::vector<const Array*> from;
  std::vector<const Array*> given;
  std::vector<Batch> dys;
  for (std::uint32_t i = 0; i < kBranches; ++i) dys.emplace_back(kShapes, kDType, 10 + i);
  for (std::size_t i = 0; i < kBranches; ++i) {
    for (int d = 0; d < 2; ++d) {
      from.push_back(&outputs[i][static_cast<std::size_t>(d)]);
      given.push_back(&dys[i][d]);
    }
  }
  backward(from, given);

  Tensor sum = x.values;
  for (Values& values : sum.values) values.assign(values.size(), 0);
  for (std::size_t i = 0; i < kBranches; ++i) {
    const auto expected = expect_forward(norms[i], x.values);
    const auto all =
        gradients(x.values, dys[i].values, expected, norms[i].expected, norms[i].options);
    require_close("output", outputs[i], expected.out.values);
    check_parameters(norms[i], all);
    sum = add(sum, all.data);
    norms[i].report(session, "branch");
  }
  require_close("gradient of the data", x.gradients, sum.values, 0.5);
  session.report("data gradient", x.gradients);
}

/// Two calls of one layer share its running statistics and its parameters' gradients.
void one_layer_twice(Session& session) {
  Norm norm(session.key("bn"), 3, kDType, 2);
  norm.mark(host::kWrite, host::kWrite);
  Batch first(kShapes, kDType, 1);
  Batch second(kShapes, kDType, 2, 3);
  const Batch first_dy(kShapes, kDType, 3);
  const Batch second_dy(kShapes, kDType, 4);
  first.mark(host::kWrite);
  second.mark(host::kWrite);
  std::vector<Array> first_out;
  std::vector<Array> second_out;
  {
    const Recorded recorded;
    first_out = norm(first.arrays);
    second_out = norm(second.arrays, {1, 0});
  }
  auto from = pointers(first_out);
  auto given = pointers(first_dy.arrays);
  for (const Array* array : pointers(second_out)) from.push_back(array);
  for (const Array* array : pointers(second_dy.arrays)) given.push_back(array);
  backward(from, given);

  const auto one = expect_forward(norm, first.values);
  const auto other = expect_forward(norm, second.values);
  const auto one_back = gradients(first.values, first_dy.values, one, norm.expected, norm.options);
  const auto other_back =
      gradients(second.values, second_dy.values, other, norm.expected, norm.options);
  require_close("first output", first_out, one.out.values);
  require_close("second output", second_out, other.out.values);
  require_close("first gradient", first.gradients, one_back.data.values);
  require_close("second gradient", second.gradients, other_back.data.values);
  NormGradients sum = one_back;
  for (std::size_t d = 0; d < 2; ++d) {
    for (std::size_t c = 0; c < 3; ++c) {
      sum.gamma[d][c] += other_back.gamma[d][c];
      sum.beta[d][c] += other_back.beta[d][c];
    }
  }
  check_parameters(norm, sum);
  norm.report(session, "layer");
}

/// The second backward through a graph meets the second ones of the others.
void retained_backward(Session& session) {
  Norm norm(session.key("bn"), 3, kDType, 2);
  norm.mark(host::kAdd, host::kAdd);
  Batch x(kShapes, kDType, 1);
  x.mark(host::kWrite);
  std::vector<Batch> dys;
  for (std::uint32_t i = 0; i < 3; ++i) dys.emplace_back(kShapes, kDType, 5 + i);
  std::vector<Array> outputs;
  {
    const Recorded recorded;
    outputs = norm(x.arrays);
  }
  const auto expected = expect_forward(norm, x.values);
  NormGradients sum;
  for (std::size_t i = 0; i < dys.size(); ++i) {
    backward(pointers(outputs), pointers(dys[i].arrays), {i + 1 < dys.size(), true});
    const auto all = gradients(x.values, dys[i].values, expected, norm.expected, norm.options);
    require_close("gradient of the data", x.gradients, all.data.values);
    session.report("data gradient", x.gradients);
    if (i == 0) sum = all;
    for (std::size_t d = 0; i > 0 && d < 2; ++d) {
      for (std::size_t c = 0; c < 3; ++c) {
        sum.gamma[d][c] += all.gamma[d][c];
        sum.beta[d][c] += all.beta[d][c];
      }
    }
  }
  check_parameters(norm, sum);
  norm.report(session, "layer");
  require_error([&] { backward(pointers(outputs), pointers(dys[0].arrays)); },
                {"computational graph"});
}

/// Forwards whose outputs go away without a backward.
void dropped_backward(Session& session) {
  Norm norm(session.key("bn"), 3, kDType, 2);
  const Batch x(kShapes, kDType, 1);
  norm.mark(host::kWrite, host::kWrite);
  for (int i = 0; i < 3; ++i) {
    const Recorded recorded;
    const auto outputs = norm(x.arrays);
    expect_forward(norm, x.values);
  }
  step(session, norm, kShapes, kDType, 20);
}

/// Backward of one forward after those of later ones, on both devices. The graphs share the running
/// statistics, which are not marked: a backward that does not retain its graph breaks the others.
void backward_out_of_order(Session& session) {
  Norm norm(session.key("bn"), 3, kDType, 2);
  std::vector<Batch> xs;
  std::vector<std::vector<Array>> outputs;
  std::vector<NormOutput> expected;
  for (std::uint32_t i = 0; i < 3; ++i) {
    xs.emplace_back(kShapes, kDType, i, i);
    xs.back().mark(host::kWrite);
    const Recorded recorded;
    outputs.push_back(norm(xs.back().arrays));
    expected.push_back(expect_forward(norm, xs.back().values));
  }
  const Batch dy(kShapes, kDType, 9);
  for (const std::size_t i : {2u, 0u, 1u}) {
    backward(pointers(outputs[i]), pointers(dy.arrays), {i != 1, true});
    const auto all = gradients(xs[i].values, dy.values, expected[i], norm.expected, norm.options);
    require_close("gradient of the data", xs[i].gradients, all.data.values);
    session.report("data gradient", xs[i].gradients);
  }
  require_error([&] { backward(pointers(outputs[2]), pointers(dy.arrays)); }, {"is empty"});
  require_running(norm);
}

/// Outputs, inputs and the graph go while the operations wait for the other device.
void everything_goes_early(Session& session) {
  Norm norm(session.key("bn"), 3, kDType, 2);
  norm.mark(host::kWrite, host::kWrite);
  for (std::uint32_t i = 0; i < 3; ++i) {
    Tensor values;
    for (int d = 0; d < 2; ++d) {
      Batch x(kShapes, kDType, i);
      values = x.values;
      const Recorded recorded;
      const Array out = norm(d, x[d]);
    }
    expect_forward(norm, values);
  }
  check(host().wait_all());
  require_running(norm);
  step(session, norm, kShapes, kDType, 20);
}

/// Every device is driven by a thread of the user's.
void a_thread_for_each_device(Session& session) {
  constexpr int kSteps = 5;
  const std::vector<Shape> shapes{{1, 3, 4}, {2, 3, 4}, {3, 3, 4}};
  Norm norm(session.key("bn"), 3, kDType, 3);
  std::vector<Batch> xs;
  const Batch dy(shapes, kDType, 50);
  for (std::uint32_t i = 0; i < kSteps; ++i) {
    xs.emplace_back(shapes, kDType, i);
    xs.back().mark(host::kWrite);
  }
  std::vector<std::exception_ptr> errors(3);
  std::vector<std::thread> threads;
  for (int d = 0; d < 3; ++d) {
    threads.emplace_back([&, d] {
      Libraries::get().recorder.name_thread("a thread of the user");
      try {
        for (const Batch& x : xs) {
          std::vector<Array> output;
          {
            const Recorded recorded;
            output.push_back(norm(d, x[d]));
          }
          backward(pointers(output), {&dy[d]});
        }
      } catch (...) {
        errors[static_cast<std::size_t>(d)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  for (const Batch& x : xs) {
    const auto expected = expect_forward(norm, x.values);
    const auto all = gradients(x.values, dy.values, expected, norm.expected, norm.options);
    require_close("gradient of the data", x.gradients, all.data.values);
    session.report("data gradient", x.gradients);
  }
  require_running(norm);
}

}  // namespace

std::vector<Scenario> graph_scenarios() {
  return {
      {"a chain", a_chain},
      {"branches in another order on each device", branches},
      {"one layer twice", one_layer_twice},
      {"retained backward", retained_backward},
      {"dropped backward", dropped_backward},
      {"backward out of order", backward_out_of_order},
      {"everything goes early", everything_goes_early},
      {"a thread for each device", a_thread_for_each_device},
  };
}

}  // namespace gluon_syncbn::scenarios

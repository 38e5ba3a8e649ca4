// Several layers, and several uses of one, in one step.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "mxnet/layer.h"
#include "support/wait_until.h"

namespace gluon_syncbn::tests {
namespace {

using fake_mxnet::CustomOp;
using fake_mxnet::Node;

}  // namespace

TEST_CASE_FIXTURE(Library, "networks: many steps of layers in another order on every device") {
  constexpr std::size_t kLayers = 5;
  constexpr std::size_t kDevices = 4;
  const std::vector<Shape> shapes{{2, 3, 4}, {1, 3, 4}, {3, 3, 4}, {2, 3, 4}};
  std::vector<Layer> layers;
  for (std::size_t i = 0; i < kLayers; ++i) {
    layers.emplace_back("bn" + std::to_string(i), 3, kDevices);
  }
  // Emulated kernels are slow.
  const std::uint32_t steps = device(0).dev_type == mxnet::kGPUContext ? 5 : 50;
  for (std::uint32_t step = 0; step < steps; ++step) {
    CAPTURE(step);
    const Batch x(shapes, step);
    const Batch dy(shapes, step + 1);
    std::vector<std::vector<Call>> calls(kLayers, std::vector<Call>(kDevices));
    for (std::size_t d = 0; d < kDevices; ++d) {
      for (std::size_t i = 0; i < kLayers; ++i) {
        const std::size_t at = (d % 2 ? kLayers - 1 - i : i + d + step) % kLayers;
        calls[at][d] = layers[at].call(static_cast<int>(d), x.arrays[d]);
      }
    }
    for (std::size_t d = kDevices; d-- > 0;) {
      for (std::size_t i = 0; i < kLayers; ++i) calls[(i + d) % kLayers][d].backward(dy.arrays[d]);
    }
    for (std::size_t i = 0; i < kLayers; ++i) {
      const auto forward = layers[i].check_outputs(x.values, calls[i]);
      layers[i].check_gradients(forward, dy.values, calls[i]);
    }
  }
  for (const Layer& layer : layers) layer.check_running();
}

TEST_CASE_FIXTURE(Library, "networks: one layer twice in a static graph, in any order") {
  Layer layer("bn", 3, 2, {}, {{"scope", "graph"}});
  const std::vector<Node> nodes{Node(layer.attributes), Node(layer.attributes)};
  std::vector<std::vector<std::shared_ptr<CustomOp>>> ops(2);
  for (int d = 0; d < 2; ++d) {
    const auto inputs = layer.inputs(d, Batch(kTwo, 0).arrays[static_cast<std::size_t>(d)]);
    for (const Node& node : nodes) {
      ops[static_cast<std::size_t>(d)].push_back(node.create_operator(device(d), inputs));
    }
  }
  for (std::uint32_t step = 0; step < 10; ++step) {
    CAPTURE(step);
    const std::vector<Batch> x{Batch(kTwo, 2 * step), Batch(kTwo, 2 * step + 1, 3)};
    const Batch dy(kTwo, step + 50);
    std::vector<std::vector<Call>> calls(2, std::vector<Call>(2));
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t d = i / 2;
      const std::size_t use = (i + d + step) % 2;
      const NDArray& data = x[use].arrays[d];
      calls[use][d] = {ops[d][use], layer.inputs(static_cast<int>(d), data),
                       NDArray(data.shape(), data.dtype(), data.context())};
      ops[d][use]->forward(calls[use][d].inputs, calls[use][d].out, true, true);
    }
    for (auto& of_use : calls) {
      for (std::size_t d = 0; d < 2; ++d) of_use[d].backward(dy.arrays[d]);
    }
    // The updates of a step may come in either order, the same on both devices.
    std::vector<Parameters> possible;
    const Parameters before = layer.expected;
    for (const std::size_t first : {0u, 1u}) {
      layer.expected = before;
      for (const std::size_t use : {first, 1 - first}) {
        const auto forward = layer.check_outputs(x[use].values, calls[use]);
        layer.check_gradients(forward, dy.values, calls[use]);
      }
      possible.push_back(layer.expected);
    }
    fake_mxnet::Engine::get().wait_for_all();  // no order between steps either
    layer.expect_one_of(possible);
    layer.check_running();
  }
}

TEST_CASE_FIXTURE(Library, "networks: outputs and inputs go while operations wait") {
  Layer layer("bn", 3, 2);
  for (std::uint32_t i = 0; i < 3; ++i) {
    for (int d = 0; d < 2; ++d) {
      Batch x(kTwo, i);
      layer.call(d, x.arrays[static_cast<std::size_t>(d)]);
      if (d == 1) normalize(x.values, layer.options, true, &layer.expected);
    }
  }
  layer.check_running();
  run_step(&layer, kTwo, 20);
}

TEST_CASE_FIXTURE(Library, "networks: on GPUs, passes do without the workers of MXNet" *
                               doctest::skip(tested_type() != "gpu")) {
  constexpr int kWorkers = 2;  // of each GPU
  Layer layer("bn", 3, 2);
  const Batch x(kTwo, 1);
  fake_mxnet::Engine::get().wait_for_all();
  std::promise<void> go_on;
  const auto held = go_on.get_future().share();
  for (int i = 0; i < 2 * kWorkers; ++i) {
    fake_mxnet::Engine::get().push(
        [held](const mxnet::OnComplete& on_complete) {
          held.wait();
          fake_mxnet::complete(on_complete);
        },
        device(i % 2), {}, {});
  }
  // A pass has arrays until it is done, and the first cannot be before the second has come.
  const long handles_before = fake_mxnet::handles_given_out();
  const auto wait_for = [&](bool arrays) {
    return wait_until([&] { return (fake_mxnet::handles_given_out() > handles_before) == arrays; });
  };
  std::vector<Call> calls{layer.call(0, x.arrays[0])};
  CHECK(wait_for(true));
  calls.push_back(layer.call(1, x.arrays[1]));
  CHECK(wait_for(false));
  go_on.set_value();
  layer.check_outputs(x.values, calls);
}

TEST_CASE_FIXTURE(Library, "networks: a thread of the user's for every device") {
  constexpr int kSteps = 10;
  const std::vector<Shape> shapes{{1, 3, 4}, {2, 3, 4}, {3, 3, 4}};
  Layer layer("bn", 3, 3);
  std::vector<Batch> x;
  const Batch dy(shapes, 50);
  for (std::uint32_t i = 0; i < kSteps; ++i) x.emplace_back(shapes, i);
  std::vector<std::vector<Call>> calls(kSteps, std::vector<Call>(3));
  run_ranks(3, [&](std::size_t d) {
    for (std::size_t i = 0; i < kSteps; ++i) {
      calls[i][d] = layer.call(static_cast<int>(d), x[i].arrays[d]);
      calls[i][d].backward(dy.arrays[d]);
    }
  });
  for (std::size_t i = 0; i < kSteps; ++i) {
    layer.check_gradients(layer.check_outputs(x[i].values, calls[i]), dy.values, calls[i]);
  }
  layer.check_running();
}

}  // namespace gluon_syncbn::tests

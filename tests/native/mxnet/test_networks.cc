// Several layers, and several uses of one, in one step.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "mxnet/layer.h"

namespace gluon_syncbn::tests {
namespace {

using fake_mxnet::CustomOp;
using fake_mxnet::Node;

constexpr int kDType = mxnet::kFloat32;
const std::vector<Shape> kTwo{{2, 3, 4}, {1, 3, 4}};

void backward(std::vector<Call>* calls, const std::vector<NDArray>& gradients) {
  for (std::size_t d = 0; d < calls->size(); ++d) (*calls)[d].backward(gradients[d]);
}

std::vector<NDArray> outputs(const std::vector<Call>& calls) {
  std::vector<NDArray> all;
  for (const Call& call : calls) all.push_back(call.out);
  return all;
}

}  // namespace

TEST_CASE_FIXTURE(Library, "networks: layers that feed each other") {
  std::vector<Layer> layers;
  for (const char* name : {"bn1", "bn2", "bn3"}) layers.emplace_back(name, 3, kDType, 2);
  const Batch x(kTwo, kDType, 1);
  const Batch dy(kTwo, kDType, 2);
  std::vector<std::vector<Call>> calls;
  for (const Layer& layer : layers) {
    calls.push_back(layer.call(calls.empty() ? x.arrays : outputs(calls.back())));
  }
  std::vector<NDArray> gradients = dy.arrays;
  for (std::size_t i = layers.size(); i-- > 0;) {
    backward(&calls[i], gradients);
    for (std::size_t d = 0; d < 2; ++d) gradients[d] = calls[i][d].gradients.front();
  }
  std::vector<Normalized> forward;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    forward.push_back(layers[i].check_outputs(i == 0 ? x.values : forward.back().out, calls[i]));
    layers[i].check_running();
  }
  Tensor gradient = dy.values;
  for (std::size_t i = layers.size(); i-- > 0;) {
    layers[i].check_gradients(forward[i], gradient, calls[i]);
    gradient = differentiate(forward[i], gradient, layers[i].options).x;
  }
}

TEST_CASE_FIXTURE(Library, "networks: many steps of layers in another order on every device") {
  constexpr std::size_t kLayers = 5;
  constexpr std::size_t kDevices = 4;
  const std::vector<Shape> shapes{{2, 3, 4}, {1, 3, 4}, {3, 3, 4}, {2, 3, 4}};
  std::vector<Layer> layers;
  for (std::size_t i = 0; i < kLayers; ++i) {
    layers.emplace_back("bn" + std::to_string(i), 3, kDType, kDevices);
  }
  // Emulated kernels are slow.
  const std::uint32_t steps = device(0).dev_type == mxnet::kGPUContext ? 5 : 50;
  for (std::uint32_t step = 0; step < steps; ++step) {
    CAPTURE(step);
    const Batch x(shapes, kDType, step);
    const Batch dy(shapes, kDType, step + 1);
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

TEST_CASE_FIXTURE(Library, "networks: one layer twice in a step") {
  Layer layer("bn", 3, kDType, 2);
  const Batch first(kTwo, kDType, 1);
  const Batch second(kTwo, kDType, 2, 3);
  const Batch dy(kTwo, kDType, 3);
  auto first_calls = layer.call(first.arrays);
  auto second_calls = layer.call(second.arrays, {1, 0});
  backward(&first_calls, dy.arrays);
  backward(&second_calls, dy.arrays);
  const auto forward = layer.check_outputs(first.values, first_calls);
  layer.check_gradients(forward, dy.values, first_calls);
  layer.check_gradients(layer.check_outputs(second.values, second_calls), dy.values, second_calls);
  layer.check_running();
}

TEST_CASE_FIXTURE(Library, "networks: one layer twice in a static graph, in any order") {
  Layer layer("bn", 3, kDType, 2, {}, {{"scope", "graph"}});
  auto second_use = layer.attributes;
  second_use.emplace_back("use", "1");
  const std::vector<Node> nodes{Node(layer.attributes), Node(second_use)};
  std::vector<std::vector<std::shared_ptr<CustomOp>>> ops(2);
  for (int d = 0; d < 2; ++d) {
    const auto inputs = layer.inputs(d, Batch(kTwo, kDType, 0).arrays[static_cast<std::size_t>(d)]);
    for (const Node& node : nodes) {
      ops[static_cast<std::size_t>(d)].push_back(node.create_operator(device(d), inputs));
    }
  }
  for (std::uint32_t step = 0; step < 10; ++step) {
    CAPTURE(step);
    const std::vector<Batch> x{Batch(kTwo, kDType, 2 * step), Batch(kTwo, kDType, 2 * step + 1, 3)};
    const Batch dy(kTwo, kDType, step + 50);
    std::vector<std::vector<Call>> calls(2, std::vector<Call>(2));
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t d = i / 2;
      const std::size_t use = (i + d + step) % 2;
      const NDArray& data = x[use].arrays[d];
      calls[use][d] = {ops[d][use], layer.inputs(static_cast<int>(d), data),
                       NDArray(data.shape(), kDType, device(static_cast<int>(d)))};
      ops[d][use]->forward(calls[use][d].inputs, calls[use][d].out, mxnet::kWrite, true, true);
    }
    for (auto& of_use : calls) backward(&of_use, dy.arrays);
    for (std::size_t use = 0; use < 2; ++use) {
      const auto forward = layer.check_outputs(x[use].values, calls[use]);
      layer.check_gradients(forward, dy.values, calls[use]);
    }
    fake_mxnet::Engine::get().wait_for_all();  // no order between steps either
    layer.check_running();
  }
}

TEST_CASE_FIXTURE(Library, "networks: a static graph twice before backward is refused") {
  const Layer layer("bn", 3, kDType, 2, {}, {{"scope", "graph"}});
  const Batch x(kTwo, kDType, 0);
  const Node node(layer.attributes);
  const auto run = [&](int copy, std::vector<std::vector<std::shared_ptr<CustomOp>>>* ops) {
    std::vector<NDArray> outs;
    for (int d = 0; d < 2; ++d) {
      const auto inputs = layer.inputs(d, x.arrays[static_cast<std::size_t>(d)]);
      auto& of_copy = (*ops)[static_cast<std::size_t>(copy)];
      if (of_copy.size() < 2) of_copy.push_back(node.create_operator(device(d), inputs));
      outs.emplace_back(inputs[0].shape(), kDType, device(d));
      of_copy[static_cast<std::size_t>(d)]->forward(inputs, outs.back(), mxnet::kWrite, true, true);
    }
    return outs;
  };
  std::vector<std::vector<std::shared_ptr<CustomOp>>> ops(2);
  for (const int copy : {0, 1}) {
    for (const NDArray& out : run(copy, &ops)) static_cast<void>(out.read());
  }
  for (const NDArray& out : run(0, &ops)) check_error(out, {"static_shape=True was called twice"});
}

TEST_CASE_FIXTURE(Library, "networks: backward passes twice, out of order, or never") {
  Layer layer("bn", 3, kDType, 2);
  std::vector<Batch> x;
  std::vector<std::vector<Call>> calls;
  std::vector<Normalized> forward;
  for (std::uint32_t i = 0; i < 4; ++i) {
    x.emplace_back(kTwo, kDType, i, i);
    calls.push_back(layer.call(x.back().arrays));
  }
  for (std::size_t i = 0; i < 4; ++i) forward.push_back(layer.check_outputs(x[i].values, calls[i]));
  calls[3].clear();
  for (const std::size_t i : {2u, 0u, 2u, 1u, 0u, 0u}) {
    const Batch dy(kTwo, kDType, 9);
    // The second backward pass meets the second ones of the others.
    backward(&calls[i], dy.arrays);
    layer.check_gradients(forward[i], dy.values, calls[i]);
  }
  layer.check_running();
}

TEST_CASE_FIXTURE(Library, "networks: outputs and inputs go while operations wait") {
  Layer layer("bn", 3, kDType, 2);
  for (std::uint32_t i = 0; i < 3; ++i) {
    for (int d = 0; d < 2; ++d) {
      Batch x(kTwo, kDType, i);
      layer.call(d, x.arrays[static_cast<std::size_t>(d)]);
      if (d == 1) normalize(x.values, layer.options, true, &layer.expected);
    }
  }
  layer.check_running();
  run_step(&layer, kTwo, kDType, 20);
}

TEST_CASE_FIXTURE(Library, "networks: a thread of the user's for every device") {
  constexpr int kSteps = 10;
  const std::vector<Shape> shapes{{1, 3, 4}, {2, 3, 4}, {3, 3, 4}};
  Layer layer("bn", 3, kDType, 3);
  std::vector<Batch> x;
  const Batch dy(shapes, kDType, 50);
  for (std::uint32_t i = 0; i < kSteps; ++i) x.emplace_back(shapes, kDType, i);
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

// One layer, called once in a step, against one device with the whole batch.

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "mxnet/layer.h"

namespace gluon_syncbn::tests {
namespace {

constexpr int kDType = mxnet::kFloat32;
const std::vector<Shape> kTwo{{2, 3, 4, 5}, {2, 3, 4, 5}};
const std::vector<Shape> kUneven{{1, 3, 3, 3}, {4, 3, 3, 3}, {2, 3, 3, 3}};
const std::vector<Shape> kFour{{1, 4, 7}, {1, 4, 7}, {1, 4, 7}, {1, 4, 7}};

struct Case {
  std::string name;
  std::vector<Shape> shapes;
  int dtype = kDType;
  Options options{};
  Step step{};
};

std::vector<Case> cases() {
  using mxnet::kAdd;
  using mxnet::kNull;
  using mxnet::kWrite;
  std::vector<Case> all{
      {"one device", {{4, 3, 5}}},
      {"two devices", kTwo},
      {"uneven shards", kUneven},
      {"one sample on each of four devices", kFour},
      {"a shard without samples", {{2, 3, 4}, {0, 3, 4}, {1, 3, 4}}},
      {"float64", kUneven, mxnet::kFloat64},
      {"float16", kTwo, mxnet::kFloat16},
      {"volumes", {{2, 3, 2, 3, 2}, {1, 3, 2, 3, 2}}, mxnet::kFloat64},
  };
  Options options;
  options.axis = -1;
  all.push_back({"channels last", {{2, 3, 5, 6}, {3, 3, 5, 6}}, kDType, options});
  options = {};
  options.eps = 1e-2;
  options.momentum = 0.5;
  all.push_back({"another eps and momentum", kTwo, kDType, options});
  options.momentum = std::nullopt;
  all.push_back({"the average over all batches", kUneven, kDType, options});
  options = {};
  options.fix_gamma = true;
  all.push_back({"fixed gamma", kTwo, kDType, options});
  options = {};
  options.use_global_stats = true;
  all.push_back({"global statistics", kTwo, kDType, options});
  Step step;
  step.is_train = false;
  all.push_back({"backward through inference", kTwo, kDType, {}, step});
  step = {};
  step.mean = 1000;
  all.push_back({"data far from zero", kTwo, mxnet::kFloat64, {}, step});
  for (const Requests& requests : {Requests{kAdd, kAdd, kAdd}, Requests{kWrite, kNull, kNull},
                                   Requests{kNull, kAdd, kNull}, Requests{kNull, kNull, kWrite}}) {
    step = {};
    step.requests = requests;
    all.push_back({"gradients that are added or not wanted", kUneven, kDType, {}, step});
  }
  return all;
}

int channels_of(const Case& test) {
  return test.options.axis < 0 ? test.shapes.front().back() : test.shapes.front()[1];
}

}  // namespace

TEST_CASE_FIXTURE(Library, "training: steps are those of one device with the whole batch") {
  for (const Case& test : cases()) {
    CAPTURE(test.name);
    const int devices = static_cast<int>(test.shapes.size());
    Layer layer("bn", channels_of(test), test.dtype, devices, test.options);
    Step step = test.step;
    for (std::uint32_t i = 0; i < 4; ++i) {
      // Devices come in another order in every step.
      step.order.clear();
      for (int d = 0; d < devices; ++d) {
        step.order.push_back((i % 2 ? devices - 1 - d : d) + static_cast<int>(i));
        step.order.back() %= devices;
      }
      run_step(&layer, test.shapes, test.dtype, 10 * i, step);
    }
  }
}

TEST_CASE_FIXTURE(Library, "training: groups of devices know nothing of each other") {
  const std::vector<std::vector<std::size_t>> groups{{0, 2}, {3, 1}};
  const Layer layer("bn", 4, kDType, 4, {}, {{"sync_group_size", "2"}, {"device_ids", "0,2,3,1"}});
  const Batch x(kFour, kDType, 5);
  const Batch dy(kFour, kDType, 6);
  auto calls = layer.call(x.arrays, {3, 2, 1, 0});
  for (std::size_t d = 0; d < 4; ++d) calls[d].backward(dy.arrays[d]);
  for (const auto& group : groups) {
    // As a layer of their own.
    Layer own = layer;
    own.parameters.clear();
    Tensor of_x;
    Tensor of_dy;
    std::vector<Call> of_group;
    for (const std::size_t d : group) {
      for (const auto& [part, whole] : {std::pair(&of_x, &x.values), {&of_dy, &dy.values}}) {
        part->shapes.push_back(whole->shapes[d]);
        part->values.push_back(whole->values[d]);
      }
      of_group.push_back(calls[d]);
      own.parameters.push_back(layer.parameters[d]);
    }
    own.check_gradients(own.check_outputs(of_x, of_group), of_dy, of_group);
    own.check_running();
  }
}

TEST_CASE_FIXTURE(Library, "training: inference needs no other device and moves nothing") {
  Layer layer("bn", 3, kDType, 2);
  const Batch x(kTwo, kDType, 3);
  std::vector<Call> calls{layer.call(0, x.arrays[0], false)};
  static_cast<void>(calls[0].out.read());
  calls.push_back(layer.call(1, x.arrays[1], false));
  layer.check_outputs(x.values, calls, false);
  layer.check_running();
}

}  // namespace gluon_syncbn::tests

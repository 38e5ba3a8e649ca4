// One layer, called once in a step, against one device with the whole batch.

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mxnet/layer.h"

namespace gluon_syncbn::tests {
namespace {

struct Case {
  std::string name;
  std::vector<Shape> shapes;
  Options options{};
  bool is_train = true;
  Requests requests{};
};

}  // namespace

TEST_CASE_FIXTURE(Library, "training: steps are those of one device with the whole batch") {
  using mxnet::kAdd;
  using mxnet::kNull;
  using mxnet::kWrite;
  const std::vector<Shape> uneven{{1, 3, 3, 3}, {4, 3, 3, 3}, {2, 3, 3, 3}};
  const std::vector<Case> cases{
      {"one device", {{4, 3, 5}}},
      {"a shard without samples", {{2, 3, 4}, {0, 3, 4}, {1, 3, 4}}},
      {"the average over all batches", uneven, {std::nullopt}},
      {"fixed gamma", uneven, {0.9, true}},
      {"backward through inference", uneven, {}, false},
      {"gradients that are added and written", uneven, {}, true, {kAdd, kWrite, kAdd}},
      {"the gradient of the data alone", uneven, {}, true, {kWrite, kNull, kNull}},
      {"the gradient of gamma alone", uneven, {}, true, {kNull, kAdd, kNull}},
      {"the gradient of beta alone", uneven, {}, true, {kNull, kNull, kWrite}},
  };
  for (const Case& test : cases) {
    CAPTURE(test.name);
    const int devices = static_cast<int>(test.shapes.size());
    Layer layer("bn", 3, devices, test.options);
    for (std::uint32_t i = 0; i < 4; ++i) {
      // Devices come in another order in every step.
      std::vector<int> order;
      for (int d = 0; d < devices; ++d) {
        order.push_back(((i % 2 ? devices - 1 - d : d) + static_cast<int>(i)) % devices);
      }
      run_step(&layer, test.shapes, 10 * i, {order, test.is_train, test.requests});
    }
  }
}

}  // namespace gluon_syncbn::tests

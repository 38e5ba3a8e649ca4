// Passes of a backend: of CPU contexts, or of GPU contexts if GLUON_SYNCBN_TEST_DEVICE is gpu.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "common/half.h"
#include "cuda/needs_gpu.h"
#include "norm/invertible.h"
#include "support/arrays.h"
#include "support/oracle.h"
#include "support/ranks.h"
#include "support/step.h"
#include "support/values.h"

#ifdef __SANITIZE_THREAD__  // which is slow, and cannot tell these apart
#define GLUON_SYNCBN_DTYPES float
#else
#define GLUON_SYNCBN_DTYPES float, double, Half
#endif

namespace gluon_syncbn::tests {
namespace {

const std::string kType = tested_type();

/// For each test: GPUs are there, if they are tested.
class TestedDevices {
 public:
  TestedDevices() {
    if (kType == "gpu") need_gpu();
  }

 private:
  const ShareGpus share_;
};

/// All contexts in one process.
std::vector<Contexts> together(std::size_t number) { return {{kType, number}}; }
/// Every context in a process of its own, where it computes for itself.
std::vector<Contexts> apart(std::size_t number) {
  return std::vector<Contexts>(number, Contexts{kType, 1});
}

/// All contexts, of which `last` is the last to come.
std::vector<std::size_t> order_to(std::size_t last, std::size_t number) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < number; ++i) order.push_back((last + 1 + i) % number);
  return order;
}

template <class T>
void check_same(const LayerOf<T>& a, const LayerOf<T>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(a.shards[i]->results(), b.shards[i]->results()));
  }
}

/// What differs between steps, for all contexts.
struct Kind {
  Activation activation{};
  bool adds_shortcut = false;
  bool in_place = false;
  WriteMode write = WriteMode::kAssign;

  template <class T>
  void apply(LayerOf<T>* layer) const {
    layer->for_each([&](Shard<T>* shard) {
      shard->activation = activation;
      shard->adds_shortcut = adds_shortcut;
      shard->in_place = in_place;
      shard->write = write;
    });
  }
};

template <class T>
void check_step_together(const std::vector<Layout>& layouts, const Kind& kind, std::size_t last) {
  CAPTURE(last);
  const std::size_t number = layouts.size();
  LayerOf<T> expected(apart(number), layouts);
  LayerOf<T> layer(together(number), layouts);
  kind.apply(&expected);
  kind.apply(&layer);
  CHECK(expected.step(order_to(0, number)) == no_errors(2 * number));
  CHECK(layer.step(order_to(last, number)) == no_errors(2 * number));
  check_same(layer, expected);
}

const std::vector<std::vector<Layout>> kDevices = {
    {{2, 5, 49}},
    {{2, 5, 49}, {3, 5, 49}},
    {{40, 6, 1}, {40, 6, 1}, {7, 6, 3}},
    {{40, 6, 1}, {2, 6, 49}},
    {{0, 6, 49}, {2, 6, 49}},
    // As much as the CPU takes some channels at a time.
    {{2, 67, 16000}},
    {{2, 67, 8000}, {2, 67, 8000}, {1, 67, 17}},
    {{0, 67, 1500}, {1, 67, 40}, {3, 67, 11000}},
    {{200000, 2, 1}, {1, 2, 20}},
    {{1, 40, 16384}, {40, 40, 1}, {3, 40, 17}},
};
constexpr std::size_t kFirstLarge = 5;

/// Emulated kernels are slow.
std::size_t numbers_of_devices() { return kType == "gpu" ? kFirstLarge : kDevices.size(); }

}  // namespace

TEST_CASE("passes: contexts of all processes compute what one does on the whole batch") {
  const TestedDevices devices;
  // Backward may read the output, which then must not be added to anything.
  const std::vector<Kind> kinds{{},
                                {{}, true, false, WriteMode::kAdd},
                                {{}, false, true},
                                {{ActType::kElu, 1}},
                                {{ActType::kElu, 1}, true}};
  const std::vector<std::vector<Contexts>> spreads{
      {{kType, 8}},
      {{kType, 1}, {kType, 1}},
      {{kType, 1}, {kType, 2}, {kType, 3}},
      {{kType, 2}, {"cpu", 1}, {"cpu", 2}},
  };
  for (std::size_t spread = 0; spread < spreads.size(); ++spread) {
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      for (const std::int64_t inner : {1, 49, 5000}) {
        if (inner > 1000 && kind != spread % kinds.size()) continue;  // large arrays take long
        CAPTURE(spread);
        CAPTURE(kind);
        CAPTURE(inner);
        Layer layer(spreads[spread], inner);
        kinds[kind].apply(&layer);
        CHECK(layer.step() == no_errors(2 * layer.size()));
        layer.check_one_batch();
      }
    }
  }
}

TEST_CASE_TEMPLATE("passes: the same bits as every device computing for itself", T,
                   GLUON_SYNCBN_DTYPES) {
  const TestedDevices devices;
  for (std::size_t i = 0; i < numbers_of_devices(); ++i) {
    CAPTURE(i);
    const std::vector<Layout>& layouts = kDevices[i];
    check_step_together<T>(layouts, {{}, false, false, WriteMode::kAdd}, 0);
    check_step_together<T>(layouts, {}, layouts.size() - 1);
    if (i != 1 && i != 2 && i != 6) continue;
    for (const Activation& activation : kActivationsAndNone) {
      CAPTURE(static_cast<int>(activation.type));
      for (const bool adds_shortcut : {false, true}) {
        // Large arrays take long.
        const bool is_elu = activation.type == ActType::kElu;
        if (i >= kFirstLarge && adds_shortcut != is_elu) continue;
        const auto write = adds_shortcut ? WriteMode::kAdd : WriteMode::kAssign;
        check_step_together<T>(layouts, {activation, adds_shortcut, false, write}, 0);
      }
    }
  }
}

TEST_CASE("passes: devices on threads of their own meet in any order") {
  const TestedDevices devices;
  for (const std::int64_t inner : {20, 600, 8000}) {
    if (kType == "gpu" && inner > 1000) continue;
    const std::vector<Layout> layouts(3, Layout{2, 67, inner});
    Layer expected(apart(3), layouts);
    Layer layer(together(3), layouts);
    for (int repeat = 0; repeat < 10; ++repeat) {
      CHECK(expected.step({0, 1, 2}) == no_errors(6));
      CHECK(layer.step() == no_errors(6));
      check_same(layer, expected);
    }
  }
}

TEST_CASE("passes: layers meet in any order") {
  const TestedDevices devices;
  const std::vector<Contexts> processes{{kType, 2}, {kType, 1}, {kType, 1}};
  Layer a(processes, 49, 0, "a");
  Layer b(processes, 7, 0, "b");
  Layer c(processes, 1, 0, "c");
  CHECK(Layer::step({&a, &b, &c}) == no_errors(24));
  for (const Layer* layer : {&a, &b, &c}) layer->check_one_batch();
  for (int i = 0; i < 20; ++i) CHECK(Layer::step({&a, &b, &c}) == no_errors(24));
  a.check_same_averages();
}

TEST_CASE("passes: without y and gradients, the running statistics still move") {
  const TestedDevices devices;
  for (const std::int64_t inner : {20, 17000}) {
    if (kType == "gpu" && inner > 1000) continue;
    const std::vector<Layout> layouts(2, Layout{2, 64, inner});
    Layer whole(together(2), layouts);
    Layer layer(together(2), layouts);
    layer.for_each([](Shard<float>* shard) { shard->wants_outputs = false; });
    CHECK(whole.step() == no_errors(4));
    CHECK(layer.step() == no_errors(4));
    for (std::size_t i = 0; i < 2; ++i) {
      const auto& shard = *layer.shards[i];
      CHECK(same_bits(shard.running_mean.values(), whole.shards[i]->running_mean.values()));
      CHECK(same_bits(shard.running_variance.values(), whole.shards[i]->running_variance.values()));
      CHECK(shard.saved.count == whole.shards[i]->saved.count);
      CHECK(same_bits(shard.y.values(), shard.before));
      CHECK(same_bits(shard.dx.values(), shard.before));
      CHECK(same_bits(shard.gamma_gradient.values(), shard.betas));
      CHECK(same_bits(shard.beta_gradient.values(), shard.betas));
    }
  }
}

TEST_CASE("passes: a batch without elements moves nothing") {
  const TestedDevices devices;
  Layer layer(together(2), std::vector<Layout>(2, {0, 5, 49}));
  layer.shards[1]->momentum.reset();
  // 1 / sqrt(variance + eps) is infinite.
  layer.for_each([](Shard<float>* shard) { shard->eps = 0; });
  CHECK(layer.step() == no_errors(4));
  const std::vector<float> zeros(5);
  for (const auto& shard : layer.shards) {
    CHECK(same_bits(shard->running_mean.values(), shard->averages));
    CHECK(same_bits(shard->running_variance.values(), shard->averages));
    CHECK(shard->num_batches.values() == std::vector<float>{0});
    CHECK(shard->gamma_gradient.values() == zeros);
    CHECK(shard->beta_gradient.values() == zeros);
  }
}

// On GPUs a call completes after the work of its own GPU.
TEST_CASE("passes: the running statistics of all devices have moved before a call completes" *
          doctest::skip(tested_type() == "gpu")) {
  for (const std::int64_t inner : {20, 600, 17000}) {
    CAPTURE(inner);
    const std::vector<Layout> layouts(3, Layout{2, 64, inner});
    Layer expected(apart(3), layouts);
    CHECK(expected.step({0, 1, 2}) == no_errors(6));
    for (const bool with_processes : {false, true}) {
      Layer layer(together(3), layouts);
      std::size_t completed = 0;
      const auto complete = [&](const std::string& error) {
        CHECK(error.empty());
        ++completed;
        for (std::size_t i = 0; i < layer.size(); ++i) {
          const auto& shard = *layer.shards[i];
          const auto& other = *expected.shards[i];
          CHECK(same_bits(shard.running_mean.values(), other.running_mean.values()));
          CHECK(same_bits(shard.running_variance.values(), other.running_variance.values()));
          CHECK(shard.saved.count == other.saved.count);
        }
      };
      Passes passes;
      for (const auto& shard : layer.shards) passes.push_back(shard->forward_pass(complete));
      std::optional<PartialStatistics> merged;
      if (with_processes) {
        cpu::backend().sum(passes, [&](const std::string&) {
          merged = merge(Direction::kForward, parts_of(passes));
        });
      }
      cpu::backend().finish(passes, merged, "");
      CHECK(completed == 3);
    }
  }
}

TEST_CASE("passes: devices that do not meet keep their arrays, and hear why") {
  const TestedDevices devices;
  const Layer layer(together(2), std::vector<Layout>{{1, 4, 6}, {2, 4, 6}});
  for (const auto& shard : layer.shards) {
    Finishes finishes;
    fail(shard->forward_pass(finishes.one()), "nobody came");
    CHECK(finishes.wait(1) == std::vector<std::string>{"nobody came"});
    CHECK(same_bits(shard->running_mean.values(), shard->averages));
    CHECK(same_bits(shard->running_variance.values(), shard->averages));
    CHECK(same_bits(shard->y.values(), shard->before));
  }
}

TEST_CASE_TEMPLATE("passes: in place, a gamma that is too small is the error of backward", T, float,
                   double, Half) {
  const TestedDevices devices;
  using R = Real<T>;
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double gammas[] = {0,    1e-300, 1e-36, 1e-20, -1e-9, 1e-6,     3e-5, -2e-4,
                           3e-4, 0.02,   -0.03, 1,     -1,    infinity, nan};
  LayerOf<T> layer(together(1), std::vector<Layout>{{2, 3, 3}});
  Shard<T>& shard = *layer.shards.front();
  shard.in_place = true;
  int errors = 0;
  int tried = 0;
  for (const Activation& activation : {Activation{}, Activation{ActType::kLeaky, 1e-3}}) {
    shard.activation = activation;
    const Invertible invertible = Invertible::of(Type<T>::kDType, activation);
    // norm/test_invertible.cc tests what holds.
    const auto check = [&](R rounded_gamma, R rounded_beta) {
      const auto gamma = static_cast<double>(rounded_gamma);
      const auto beta = static_cast<double>(rounded_beta);
      const auto found = layer.step();
      REQUIRE(found.size() == 2);
      CHECK(found[1] == (invertible.holds(gamma, beta) ? "" : invertible.error(1, gamma, beta)));
      errors += !found[1].empty();
      ++tried;
    };
    for (const double gamma : gammas) {
      for (const double beta : {0.0, 1.0, -1.0, 5000.0, infinity, nan}) {
        shard.gamma = {R(1), R(gamma), R(1)};
        shard.beta = {R(0.5), R(beta), R(-2)};
        check(R(gamma), R(beta));
      }
    }
    shard.fix_gamma = true;  // to 1
    for (const double beta : {0.5, 1e9, 1e20}) {
      shard.beta = {R(0), R(beta), R(0)};
      check(R(1), R(beta));
    }
    shard.fix_gamma = false;
  }
  CHECK(errors > tried / 5);
  CHECK(errors < tried * 4 / 5);
}

TEST_CASE("passes: in place, of channels that are not invertible the first is named") {
  const TestedDevices devices;
  Layer layer(together(1), std::vector<Layout>{{1, 700, 3}});
  std::vector<float> gamma(700, 1);
  for (const std::size_t c : {699, 500, 271, 262, 650}) gamma[c] = 0;
  layer.shards.front()->gamma = gamma;
  layer.shards.front()->in_place = true;
  for (const auto order : kOtherOrders) {
    const InOrder in_order(order);
    CHECK(contains(layer.step().at(1), "channel 262 has"));
  }
}

TEST_CASE("passes: in place, a gamma that is too small fails devices in that step alone") {
  const TestedDevices devices;
  for (const std::size_t number : {1, 2, 5}) {
    CAPTURE(number);
    Layer layer(together(number), 49);
    const auto set = [&](Shard<float>* shard, std::size_t channel, float value) {
      auto gamma = shard->gammas;
      gamma[channel] = value;
      shard->gamma = gamma;
    };
    const auto set_all = [&](bool in_place, float value) {
      layer.for_each([&](Shard<float>* shard) {
        shard->in_place = in_place;
        set(shard, 3, value);
      });
    };
    set_all(true, 0);
    auto errors = layer.step();
    REQUIRE(errors.size() == 2 * number);
    for (std::size_t i = 0; i < errors.size(); ++i) {
      CAPTURE(errors[i]);
      CHECK((i < number ? errors[i].empty()
                        : contains(errors[i], "inplace=True: channel 3 has gamma ")));
    }
    // Of one device. A GPU finds it in the kernels that the devices have met for.
    set_all(true, 1);
    set(layer.shards.front().get(), 4, 0);
    errors = layer.step();
    const auto well = std::count(errors.begin(), errors.end(), "");
    CHECK(well == static_cast<long>(kType == "gpu" ? 2 * number - 1 : number));
    set_all(false, 1);
    CHECK(layer.step() == no_errors(2 * number));
    set_all(true, 1);
    CHECK(layer.step() == no_errors(2 * number));
    for (const auto& shard : layer.shards) {
      const auto dx = shard->dx.values();
      CHECK(std::all_of(dx.begin(), dx.end(), [](float value) { return std::isfinite(value); }));
    }
  }
}

}  // namespace gluon_syncbn::tests

#include "mxnet/layer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "cuda/runtime.h"
#include "support/values.h"
#include "support/wait_until.h"
#include "sync/barrier.h"
#include "sync/failed_steps.h"

// library.cc
extern "C" const char* gluon_syncbn_register(const char* libmxnet, void (*)(int, char*, int),
                                             void (*)(void (*)(void*)), void (*)());

namespace gluon_syncbn::tests {
namespace {

Values random_values(std::size_t size, std::uint32_t seed, double mean, double deviation = 1) {
  Normal normal(seed);
  Values values;
  for (std::size_t i = 0; i < size; ++i) {
    values.push_back(static_cast<float>(normal(mean, deviation)));
  }
  return values;
}

void check_array(const std::string& what, const NDArray& actual, const Values& expected) {
  long double largest = 1;
  for (const long double value : expected) largest = std::max(largest, std::fabs(value));
  const Values values = actual.read();
  REQUIRE(values.size() == expected.size());
  check_close(
      what + " on device " + std::to_string(actual.context().dev_id), values.size(),
      [&](std::size_t i) { return values[i]; }, [&](std::size_t i) { return expected[i]; },
      [&](std::size_t) { return 2e-5L * largest; });
}

}  // namespace

Library::Library() {
  if (device(0).dev_type == mxnet::kGPUContext && cuda::device_count() == 0) {
    throw Error("skipped: GPUs: " + cuda::describe_devices());
  }
  static const char* const error = gluon_syncbn_register(nullptr, nullptr, nullptr, nullptr);
  REQUIRE(error == nullptr);
}

Library::~Library() {
  fake_mxnet::Engine::get().wait_for_all();
  FailedSteps::instance().drop();
  // What the last operations held goes a little after they are over.
  const auto is_left = [this] {
    return fake_mxnet::handles_given_out() > handles_before_ || !Barrier::all_named().empty();
  };
  wait_until([&] { return !is_left(); });
  CHECK(fake_mxnet::handles_given_out() == handles_before_);
  CHECK(Barrier::all_named().empty());
}

mxnet::Context device(int index) {
  return {tested_type() == "gpu" ? mxnet::kGPUContext : mxnet::kCPUContext, index};
}

Batch::Batch(const std::vector<Shape>& shapes, std::uint32_t seed, double mean) {
  for (std::size_t d = 0; d < shapes.size(); ++d) {
    const auto shard = static_cast<std::uint32_t>(d);
    const Layout layout = Layout::of({shapes[d].begin(), shapes[d].end()}, 1);
    const auto size = static_cast<std::size_t>(layout.count() * layout.channels);
    values.layouts.push_back(layout);
    values.shards.push_back(random_values(size, seed * 16 + shard, mean));
    arrays.emplace_back(shapes[d], device(static_cast<int>(d)), values.shards.back());
  }
}

void Call::backward(const NDArray& dy, const Requests& wanted) {
  requests = wanted;
  const std::vector<mxnet::OpReq> all{wanted.data, wanted.gamma, wanted.beta};
  gradients.clear();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const NDArray& like = inputs[i];
    gradients.emplace_back(like.shape(), like.context(), Values(like.size(), kBefore));
  }
  op->backward(dy, inputs, out, gradients, all);
}

Layer::Layer(const std::string& key, int channels, int num_devices, const Options& options_in,
             const Attributes& more)
    : options(options_in),
      attributes{{"key", key},
                 {"num_devices", std::to_string(num_devices)},
                 {"eps", std::to_string(kEps)},
                 {"momentum", options.momentum ? std::to_string(*options.momentum) : "None"},
                 {"fix_gamma", options.fix_gamma ? "True" : "False"}} {
  attributes.insert(attributes.end(), more.begin(), more.end());
  const auto size = static_cast<std::size_t>(channels);
  expected.gamma = random_values(size, 1, 1, 0.3);
  expected.beta = random_values(size, 2, 0);
  expected.running_mean = random_values(size, 3, 0);
  expected.running_var = random_values(size, 4, 1, 0.1);
  for (int d = 0; d < num_devices; ++d) {
    parameters.emplace_back();
    for (const Values& values :
         {expected.gamma, expected.beta, expected.running_mean, expected.running_var}) {
      parameters.back().emplace_back(Shape{channels}, device(d), values);
    }
    if (!options.momentum) parameters.back().emplace_back(Shape{1}, device(d), Values{0});
  }
}

std::vector<NDArray> Layer::inputs(int index, const NDArray& data) const {
  std::vector<NDArray> all{data};
  const auto& own = parameters[static_cast<std::size_t>(index)];
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

Call Layer::call(int index, const NDArray& data, bool is_train) const {
  const auto all = inputs(index, data);
  Call call{fake_mxnet::Node(attributes).create_operator(device(index), all), all,
            NDArray(data.shape(), data.dtype(), data.context())};
  call.op->forward(all, call.out, is_train, false);
  return call;
}

std::vector<Call> Layer::call(const std::vector<NDArray>& data, std::vector<int> order,
                              bool is_train) const {
  for (std::size_t d = 0; order.size() < data.size(); ++d) order.push_back(static_cast<int>(d));
  std::vector<Call> calls(data.size());
  for (const int d : order) {
    const auto at = static_cast<std::size_t>(d);
    calls[at] = call(d, data[at], is_train);
  }
  return calls;
}

Normalized Layer::check_outputs(const Tensor& x, const std::vector<Call>& calls, bool is_train) {
  auto forward = normalize(x, options, is_train, &expected);
  for (std::size_t d = 0; d < calls.size(); ++d) {
    check_array("output", calls[d].out, forward.out.shards[d]);
  }
  return forward;
}

void Layer::check_gradients(const Normalized& forward, const Tensor& dy,
                            const std::vector<Call>& calls) const {
  const auto gradients = differentiate(forward, dy, options);
  const auto check = [](const std::string& what, const NDArray& actual, mxnet::OpReq request,
                        Values values) {
    for (long double& value : values) {
      value = (request == mxnet::kNull ? 0 : value) + (request == mxnet::kWrite ? 0 : kBefore);
    }
    check_array("gradient of " + what, actual, values);
  };
  for (std::size_t d = 0; d < calls.size(); ++d) {
    const Call& call = calls[d];
    check("the data", call.gradients[0], call.requests.data, gradients.x.shards[d]);
    check("gamma", call.gradients[1], call.requests.gamma, gradients.gamma[d]);
    check("beta", call.gradients[2], call.requests.beta, gradients.beta[d]);
  }
}

void Layer::check_running() const {
  constexpr std::size_t kMean = 2;
  constexpr std::size_t kVar = 3;
  for (const auto& own : parameters) {
    check_array("running mean", own[kMean], expected.running_mean);
    check_array("running variance", own[kVar], expected.running_var);
    CHECK(own[kMean].read() == parameters.front()[kMean].read());
    CHECK(own[kVar].read() == parameters.front()[kVar].read());
    if (!options.momentum) CHECK(own[kVar + 1].read().front() == expected.batches);
  }
}

void Layer::expect_one_of(const std::vector<Parameters>& possible) {
  const auto found = parameters[0][2].read();
  const auto distance = [&](const Parameters& each) {
    long double sum = 0;
    for (std::size_t c = 0; c < found.size(); ++c) {
      sum += std::fabs(each.running_mean[c] - found[c]);
    }
    return sum;
  };
  expected = *std::min_element(possible.begin(), possible.end(), [&](const auto& a, const auto& b) {
    return distance(a) < distance(b);
  });
}

void Layer::expect_running_as_they_are() {
  expected.running_mean = parameters[0][2].read();
  expected.running_var = parameters[0][3].read();
}

void run_step(Layer* layer, const std::vector<Shape>& shapes, std::uint32_t seed,
              const Step& step) {
  const Batch x(shapes, seed);
  const Batch dy(shapes, seed + 1);
  auto calls = layer->call(x.arrays, step.order, step.is_train);
  for (std::size_t d = 0; d < calls.size(); ++d) calls[d].backward(dy.arrays[d], step.requests);
  const auto forward = layer->check_outputs(x.values, calls, step.is_train);
  layer->check_gradients(forward, dy.values, calls);
  layer->check_running();
}

void check_error(const NDArray& array, const std::vector<std::string>& parts) {
  try {
    array.read();
  } catch (const std::exception& error) {
    const std::string message = error.what();
    CAPTURE(message);
    for (const std::string& part : parts) {
      CAPTURE(part);
      CHECK(contains(message, part));
    }
    return;
  }
  FAIL_CHECK("no error, but one with '" << parts.front() << "' is expected");
}

}  // namespace gluon_syncbn::tests

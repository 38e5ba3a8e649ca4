#include "scenarios/norm.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>

#include "scenarios/dtypes.h"

namespace gluon_syncbn::scenarios {
namespace {

/// Numbers of standard deviation 1 about `mean`, the same with every standard library.
Values random_values(std::size_t size, std::uint32_t seed, double mean, double deviation = 1) {
  std::mt19937 generator(seed);
  Values values(size);
  for (double& value : values) {
    double sum = 0;  // of three uniform numbers, whose variance is a quarter
    for (int i = 0; i < 3; ++i) sum += static_cast<double>(generator()) * 0x1p-32 - 0.5;
    value = mean + deviation * 2 * sum;
  }
  return values;
}

Values rounded(const Values& values, int dtype) { return decode(encode(values, dtype), dtype); }

std::string to_text(double value) {
  std::ostringstream text;
  text.precision(17);
  text << value;
  return text.str();
}

std::vector<Array> on_all(int number, const Values& values, int dtype) {
  std::vector<Array> arrays;
  for (int d = 0; d < number; ++d) {
    arrays.emplace_back(Shape{static_cast<int>(values.size())}, dtype, device(d));
    arrays.back().write(values);
  }
  return arrays;
}

void attach(const std::vector<Array>& arrays, OpReq request, double before,
            std::vector<Array>* gradients) {
  gradients->clear();
  for (std::size_t d = 0; d < arrays.size(); ++d) {
    gradients->emplace_back(arrays[d].shape(), arrays[d].dtype(), device(static_cast<int>(d)));
    gradients->back().fill(before);
    mark_variable(arrays[d], request, gradients->back());
  }
}

}  // namespace

std::vector<const Array*> pointers(const std::vector<Array>& arrays) {
  std::vector<const Array*> all;
  for (const Array& array : arrays) all.push_back(&array);
  return all;
}

Batch::Batch(const std::vector<Shape>& shapes, int dtype, std::uint32_t seed, double mean) {
  values.shapes = shapes;
  for (std::size_t d = 0; d < shapes.size(); ++d) {
    arrays.emplace_back(shapes[d], dtype, device(static_cast<int>(d)));
    const auto shard = static_cast<std::uint32_t>(d);
    values.values.push_back(
        rounded(random_values(arrays.back().size(), seed * 16 + shard, mean), dtype));
    arrays.back().write(values.values.back());
  }
}

void Batch::mark(OpReq request, double before) { attach(arrays, request, before, &gradients); }

Norm::Norm(const std::string& key, int channels, int dtype, int num_devices,
           const NormOptions& norm_options, const Attributes& more)
    : options(norm_options),
      attributes_{{"op_type", "SyncBatchNorm"},
                  {"key", key},
                  {"num_devices", std::to_string(num_devices)},
                  {"eps", to_text(norm_options.eps)},
                  {"momentum", to_text(norm_options.momentum)},
                  {"fix_gamma", norm_options.fix_gamma ? "True" : "False"},
                  {"use_global_stats", norm_options.use_global_stats ? "True" : "False"},
                  {"axis", std::to_string(norm_options.axis)}} {
  for (const auto& [name, value] : more) {
    const auto same = [name = name](const auto& attribute) { return attribute.first == name; };
    const auto found = std::find_if(attributes_.begin(), attributes_.end(), same);
    if (found == attributes_.end()) {
      attributes_.emplace_back(name, value);
    } else {
      found->second = value;
    }
  }
  const int parameter_dtype = dtype == host::kFloat16 ? static_cast<int>(host::kFloat32) : dtype;
  const auto size = static_cast<std::size_t>(channels);
  const auto make = [&](std::uint32_t seed, double mean, double deviation) {
    return rounded(random_values(size, seed, mean, deviation), parameter_dtype);
  };
  expected = {make(1, 1, 0.3), make(2, 0, 1), make(3, 0, 1), make(4, 1, 0.2)};
  gamma = on_all(num_devices, expected.gamma, parameter_dtype);
  beta = on_all(num_devices, expected.beta, parameter_dtype);
  running_mean = on_all(num_devices, expected.running_mean, parameter_dtype);
  running_var = on_all(num_devices, expected.running_var, parameter_dtype);
}

void Norm::mark(OpReq gamma_request, OpReq beta_request, double before) {
  attach(gamma, gamma_request, before, &gamma_gradient);
  attach(beta, beta_request, before, &beta_gradient);
}

Array Norm::operator()(int device_index, const Array& data) const {
  const auto d = static_cast<std::size_t>(device_index);
  std::vector<void*> inputs{data.handle(), gamma[d].handle(), beta[d].handle(),
                            running_mean[d].handle(), running_var[d].handle()};
  std::vector<const char*> keys;
  std::vector<const char*> values;
  for (const auto& [key, value] : attributes_) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
  int num_outputs = 0;
  void** outputs = nullptr;
  check(host().invoke(Libraries::get().custom_op, static_cast<int>(inputs.size()), inputs.data(),
                      &num_outputs, &outputs, static_cast<int>(keys.size()), keys.data(),
                      values.data()));
  require(num_outputs == 1, "the operator has one output");
  return Array(outputs[0], data.shape(), data.dtype());
}

std::vector<Array> Norm::operator()(const std::vector<Array>& data) const {
  std::vector<Array> outputs;
  for (std::size_t d = 0; d < data.size(); ++d) {
    outputs.push_back((*this)(static_cast<int>(d), data[d]));
  }
  return outputs;
}

std::vector<Array> Norm::operator()(const std::vector<Array>& data,
                                    const std::vector<int>& order) const {
  std::vector<std::vector<Array>> by_device(data.size());
  for (const int d : order) {
    const auto at = static_cast<std::size_t>(d);
    by_device[at].push_back((*this)(d, data[at]));
  }
  std::vector<Array> outputs;
  for (auto& one : by_device) outputs.push_back(std::move(one.at(0)));
  return outputs;
}

void Norm::report(Session& session, const std::string& name) const {
  session.report(name + " gamma gradient", gamma_gradient);
  session.report(name + " beta gradient", beta_gradient);
  session.report(name + " running mean", running_mean);
  session.report(name + " running var", running_var);
}

double tolerance(int dtype) {
  return dtype == host::kFloat16 ? 4e-3 : dtype == host::kFloat32 ? 2e-5 : 1e-12;
}

void require_close(const std::string& what, const std::vector<Array>& actual,
                   const std::vector<Values>& expected, double before) {
  require(actual.size() == expected.size(), what + ": number of devices");
  for (std::size_t d = 0; d < actual.size(); ++d) {
    double largest = 1;
    for (const double value : expected[d]) largest = std::max(largest, std::abs(value));
    const double allowed = tolerance(actual[d].dtype()) * largest;
    const Values values = actual[d].read();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double difference = std::abs(values[i] - (expected[d][i] + before));
      if (difference <= allowed) continue;
      std::ostringstream message;
      message << what << " on device " << d << " at " << i << " is " << values[i] << " where "
              << expected[d][i] + before << " is expected";
      throw Failure(message.str());
    }
  }
}

void require_running(const Norm& norm) {
  const std::size_t devices = norm.running_mean.size();
  require_close("running mean", norm.running_mean,
                std::vector<Values>(devices, norm.expected.running_mean));
  require_close("running var", norm.running_var,
                std::vector<Values>(devices, norm.expected.running_var));
  for (std::size_t d = 1; d < devices; ++d) {
    require(norm.running_mean[d].bytes() == norm.running_mean[0].bytes() &&
                norm.running_var[d].bytes() == norm.running_var[0].bytes(),
            "running statistics are bitwise the same on all devices");
  }
}

void step(Session& session, Norm& norm, const std::vector<Shape>& shapes, int dtype,
          std::uint32_t seed, const Step& how, double mean) {
  Batch x(shapes, dtype, seed, mean);
  const Batch dy(shapes, dtype, seed + 1);
  x.mark(how.data, how.before);
  norm.mark(how.gamma, how.beta, how.before);
  std::vector<int> order = how.order;
  for (int d = 0; how.order.empty() && d < x.size(); ++d) order.push_back(d);

  std::vector<Array> outputs;
  {
    const Recorded recorded(true, how.is_train);
    outputs = norm(x.arrays, order);
  }
  backward(pointers(outputs), pointers(dy.arrays), {false, how.is_train});

  const auto of_all = [&](const Tensor& own) {
    Tensor all;
    for (std::size_t i = 0; i < how.processes; ++i) {
      all.shapes.insert(all.shapes.end(), own.shapes.begin(), own.shapes.end());
      all.values.insert(all.values.end(), own.values.begin(), own.values.end());
    }
    return all;
  };
  const Tensor whole = of_all(x.values);
  NormOutput expected = normalize(whole, norm.expected, norm.options, how.is_train);
  NormGradients gradient =
      gradients(whole, of_all(dy.values), expected, norm.expected, norm.options);
  for (auto* values :
       {&expected.out.values, &gradient.data.values, &gradient.gamma, &gradient.beta})
    values->resize(shapes.size());
  norm.expected.running_mean = expected.running_mean;
  norm.expected.running_var = expected.running_var;
  // A gradient that nobody asks for keeps what it held.
  const auto check_gradient = [&](const std::string& what, OpReq request,
                                  const std::vector<Array>& actual,
                                  std::vector<Values> expected_values) {
    if (request == host::kNull) {
      for (Values& values : expected_values) values.assign(values.size(), 0);
    }
    require_close(what, actual, expected_values, request == host::kWrite ? 0 : how.before);
  };
  require_close("output", outputs, expected.out.values);
  check_gradient("gradient of the data", how.data, x.gradients, gradient.data.values);
  check_gradient("gradient of gamma", how.gamma, norm.gamma_gradient, gradient.gamma);
  check_gradient("gradient of beta", how.beta, norm.beta_gradient, gradient.beta);
  require_running(norm);
  session.report("output", outputs);
  session.report("data gradient", x.gradients);
  norm.report(session, "layer");
}

}  // namespace gluon_syncbn::scenarios

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fake_mxnet/custom_op.h"
#include "fake_mxnet/ndarray.h"
#include "mxnet/c_api.h"
#include "support/oracle.h"
#include "support/ranks.h"

namespace gluon_syncbn::tests {

using fake_mxnet::Attributes;
using fake_mxnet::NDArray;
using fake_mxnet::Shape;

/// For TEST_CASE_FIXTURE: the library on the fake MXNet, which gets back all that it gives to it.
class Library {
 public:
  Library();
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

 private:
  const ScopedTimeout timeout_{60};
  const long handles_before_ = fake_mxnet::handles_given_out();
};

/// Shapes of the data of two devices.
inline const std::vector<Shape> kTwo{{2, 3, 4}, {1, 3, 4}};

/// In every output and gradient that no operation has written.
constexpr long double kBefore = 0.5;

mxnet::Context device(int index);

/// Random values of standard deviation 1 about `mean`: shard i is on device i.
struct Batch {
  Batch(const std::vector<Shape>& shapes, std::uint32_t seed, double mean = 0);

  Tensor values;  ///< as the devices hold them
  std::vector<NDArray> arrays;
};

struct Requests {
  mxnet::OpReq data = mxnet::kWrite;
  mxnet::OpReq gamma = mxnet::kWrite;
  mxnet::OpReq beta = mxnet::kWrite;
};

/// One call of a layer on one device.
struct Call {
  std::shared_ptr<fake_mxnet::CustomOp> op;
  std::vector<NDArray> inputs;
  NDArray out;
  Requests requests{};
  std::vector<NDArray> gradients{};  ///< of data, gamma and beta, after backward

  void backward(const NDArray& dy, const Requests& wanted = {});
};

/// A layer with parameters of its own on every device.
class Layer {
 public:
  Layer(const std::string& key, int channels, int num_devices, const Options& options = {},
        const Attributes& more = {});

  std::vector<NDArray> inputs(int index, const NDArray& data) const;
  /// As an imperative call does: with a property and an operator that nothing else keeps.
  Call call(int index, const NDArray& data, bool is_train = true) const;
  /// On all devices, in the order given, or in theirs.
  std::vector<Call> call(const std::vector<NDArray>& data, std::vector<int> order = {},
                         bool is_train = true) const;

  /// Checks the outputs, and expects the running statistics to have moved.
  Normalized check_outputs(const Tensor& x, const std::vector<Call>& calls, bool is_train = true);
  void check_gradients(const Normalized& forward, const Tensor& dy,
                       const std::vector<Call>& calls) const;
  /// That they are those expected, and the same bits on all devices.
  void check_running() const;
  /// Expects, of these running statistics, those that are there.
  void expect_one_of(const std::vector<Parameters>& possible);
  /// What a step that failed has left is where the next ones start from.
  void expect_running_as_they_are();

  const Options options;
  Attributes attributes;
  Parameters expected;
  std::vector<std::vector<NDArray>> parameters;  ///< by device: gamma, beta, auxiliary states
};

/// How one step is made.
struct Step {
  std::vector<int> order;  ///< of the devices
  bool is_train = true;
  Requests requests{};
};

/// Forward and backward on all devices, with all checks.
void run_step(Layer* layer, const std::vector<Shape>& shapes, std::uint32_t seed,
              const Step& step = {});

/// That reading throws a message with all of these parts.
void check_error(const NDArray& array, const std::vector<std::string>& parts);

}  // namespace gluon_syncbn::tests

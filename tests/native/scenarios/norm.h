#ifndef GLUON_SYNCBN_TESTS_NATIVE_SCENARIOS_NORM_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SCENARIOS_NORM_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "scenarios/host_api.h"
#include "scenarios/oracle.h"
#include "scenarios/scenario.h"

namespace gluon_syncbn::scenarios {

/// Pointers to arrays, which move.
std::vector<const Array*> pointers(const std::vector<Array>& arrays);

/// One tensor on several devices: shard i lives on device i.
class Batch {
 public:
  /// Random values of standard deviation 1 about `mean`.
  Batch(const std::vector<Shape>& shapes, int dtype, std::uint32_t seed, double mean = 0);

  /// Backward brings the gradient here, which holds `before` before.
  void mark(OpReq request, double before = 0);

  int size() const { return static_cast<int>(arrays.size()); }
  const Array& operator[](int index) const { return arrays[static_cast<std::size_t>(index)]; }

  std::vector<Array> arrays;
  std::vector<Array> gradients;
  Tensor values;  ///< as the devices hold them
};

/// A layer with parameters of its own on every device.
class Norm {
 public:
  using Attributes = std::vector<std::pair<std::string, std::string>>;

  /// `dtype` is that of the data.
  Norm(const std::string& key, int channels, int dtype, int num_devices,
       const NormOptions& options = {}, const Attributes& more = {});

  /// Gradients hold `before` before.
  void mark(OpReq gamma, OpReq beta, double before = 0);

  /// Calls the operator on a device. The output is ready when it is.
  Array operator()(int device_index, const Array& data) const;
  /// On all devices, in order or in the order given.
  std::vector<Array> operator()(const std::vector<Array>& data) const;
  std::vector<Array> operator()(const std::vector<Array>& data,
                                const std::vector<int>& order) const;

  /// Reports all parameters' gradients and running statistics.
  void report(Session& session, const std::string& name) const;

  const NormOptions options;
  NormParameters expected;
  std::vector<Array> gamma;
  std::vector<Array> beta;
  std::vector<Array> running_mean;
  std::vector<Array> running_var;
  std::vector<Array> gamma_gradient;
  std::vector<Array> beta_gradient;

 private:
  Attributes attributes_;
};

/// Of values that are about 1, or larger by what they were computed from.
double tolerance(int dtype);

void require_close(const std::string& what, const std::vector<Array>& actual,
                   const std::vector<Values>& expected, double before = 0);

/// Running statistics are those expected, and bitwise the same on all devices.
void require_running(const Norm& norm);

/// How one step is made.
struct Step {
  bool is_train = true;
  std::vector<int> order;  ///< of the devices in forward; empty: as they are numbered
  OpReq data = host::kWrite;
  OpReq gamma = host::kWrite;
  OpReq beta = host::kWrite;
  double before = 0;          ///< what gradients hold before
  std::size_t processes = 1;  ///< that all bring this batch
};

/// Forward and backward of one layer on all devices, checked and reported. Expects what the oracle
/// gives, and brings `norm.expected` up to date.
void step(Session& session, Norm& norm, const std::vector<Shape>& shapes, int dtype,
          std::uint32_t seed, const Step& how = {}, double mean = 0);

}  // namespace gluon_syncbn::scenarios

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SCENARIOS_NORM_H_

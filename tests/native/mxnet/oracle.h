#ifndef GLUON_SYNCBN_TESTS_NATIVE_MXNET_ORACLE_H_
#define GLUON_SYNCBN_TESTS_NATIVE_MXNET_ORACLE_H_

// Batch normalization of the whole batch in long double, written from its definition (Ioffe and
// Szegedy 2015, algorithm 1, and the gradients of section 3) and not from the code under test.

#include <optional>
#include <vector>

#include "fake_mxnet/ndarray.h"

namespace gluon_syncbn::tests {

using fake_mxnet::Shape;
using fake_mxnet::Values;

/// The shards of a batch, which may differ in size but not in channels, their second dimension.
struct Tensor {
  std::vector<Shape> shapes;
  std::vector<Values> values;
};

constexpr double kEps = 1e-3;

struct Options {
  std::optional<double> momentum = 0.9;
  bool fix_gamma = false;
};

struct Parameters {
  Values gamma;
  Values beta;
  Values running_mean;
  Values running_var;
  int batches = 0;
};

struct Normalized {
  Tensor x;
  Tensor out;
  Values gamma;
  Values mean;
  Values inv_std;
  bool of_batch = false;
};

struct Gradients {
  Tensor x;
  std::vector<Values> gamma;  ///< each shard's share
  std::vector<Values> beta;
};

/// Moves the running statistics.
Normalized normalize(const Tensor& x, const Options& options, bool is_train,
                     Parameters* parameters);
Gradients differentiate(const Normalized& forward, const Tensor& dy, const Options& options);

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_MXNET_ORACLE_H_

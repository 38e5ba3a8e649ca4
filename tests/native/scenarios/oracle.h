#ifndef GLUON_SYNCBN_TESTS_NATIVE_SCENARIOS_ORACLE_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SCENARIOS_ORACLE_H_

// Batch normalization of the whole batch in double precision, written from its definition (Ioffe
// and Szegedy 2015, algorithm 1, and the gradients of section 3) and not from the code under test.

#include <vector>

#include "fake_mxnet/types.h"

namespace gluon_syncbn::scenarios {

using Values = std::vector<double>;

/// The shards of a batch, which may differ in size but not in channels.
struct Tensor {
  std::vector<host::Shape> shapes;
  std::vector<Values> values;
};

Tensor add(const Tensor& a, const Tensor& b);

struct NormOptions {
  double eps = 1e-5;
  double momentum = 0.9;
  bool fix_gamma = false;
  bool use_global_stats = false;
  int axis = 1;
};

struct NormParameters {
  Values gamma;
  Values beta;
  Values running_mean;
  Values running_var;
};

struct NormOutput {
  Tensor out;
  Values mean;  ///< that were used, and inverse standard deviations
  Values inv_std;
  Values running_mean;  ///< from here on
  Values running_var;
  bool of_batch = false;
};

struct NormGradients {
  Tensor data;
  std::vector<Values> gamma;  ///< each shard's share
  std::vector<Values> beta;
};

NormOutput normalize(const Tensor& x, const NormParameters& parameters, const NormOptions& options,
                     bool is_train);

NormGradients gradients(const Tensor& x, const Tensor& out_gradient, const NormOutput& output,
                        const NormParameters& parameters, const NormOptions& options);

}  // namespace gluon_syncbn::scenarios

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SCENARIOS_ORACLE_H_

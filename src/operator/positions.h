#pragma once

#include <cstddef>
#include <vector>

#include "operator/attributes.h"

namespace gluon_syncbn::op {

/// The operator's arguments. The last one is there if the operator adds a shortcut.
enum Argument : std::size_t { kData, kGamma, kBeta, kShortcut };

/// The operator's auxiliary states. The last one is there if it averages over all batches.
enum AuxiliaryState : std::size_t { kMovingMean, kMovingVar, kNumBatches };

/// Which shape and dtype an array has.
enum class Role {
  kData,       ///< those of data
  kParameter,  ///< one number per channel
  kCount       ///< one number, with the dtype of parameters
};

struct NamedArray {
  const char* name;
  Role role;
};

/// The positions of arrays in MXNet's callbacks. Forward gets the arguments, the output and the
/// states. Backward gets the gradient of the output, the arguments, the output, the gradients of
/// the arguments and the states.
class Positions {
 public:
  explicit Positions(const Attributes& attributes)
      : arguments_(attributes.shortcut ? 4 : 3), states_(attributes.momentum ? 2 : 3) {}

  std::size_t arguments() const { return arguments_; }
  std::size_t states() const { return states_; }

  /// The arrays of forward, in order.
  std::vector<NamedArray> arrays() const {
    std::vector<NamedArray> all{
        {"data", Role::kData}, {"gamma", Role::kParameter}, {"beta", Role::kParameter}};
    if (arguments_ > kShortcut) all.push_back({"shortcut", Role::kData});
    all.push_back({"the output", Role::kData});
    all.push_back({"moving_mean", Role::kParameter});
    all.push_back({"moving_var", Role::kParameter});
    if (states_ > kNumBatches) all.push_back({"num_batches_tracked", Role::kCount});
    return all;
  }

  struct Forward {
    std::size_t arguments;
    std::size_t operator[](Argument argument) const { return argument; }
    std::size_t out() const { return arguments; }
    std::size_t operator[](AuxiliaryState state) const { return arguments + 1 + state; }
  };
  struct Backward {
    std::size_t arguments;
    std::size_t out_gradient() const { return 0; }
    std::size_t operator[](Argument argument) const { return 1 + argument; }
    std::size_t out() const { return 1 + arguments; }
    std::size_t gradient(Argument argument) const { return 2 + arguments + argument; }
  };
  Forward forward() const { return {arguments_}; }
  Backward backward() const { return {arguments_}; }

 private:
  std::size_t arguments_;
  std::size_t states_;
};

}  // namespace gluon_syncbn::op

#pragma once

#include <cstddef>

#include "operator/attributes.h"

namespace gluon_syncbn::op {

/// The operator's arguments. The last one is there if the operator adds a shortcut.
enum Argument : std::size_t { kData, kGamma, kBeta, kShortcut };
inline constexpr const char* kArgumentNames[] = {"data", "gamma", "beta", "shortcut"};

/// The operator's auxiliary states. The last one is there if it averages over all batches.
enum AuxiliaryState : std::size_t { kMovingMean, kMovingVar, kNumBatches };
inline constexpr const char* kStateNames[] = {"moving_mean", "moving_var", "num_batches_tracked"};

/// The positions of arrays in MXNet's callbacks. Forward gets the arguments, the output and the
/// states. Backward gets the gradient of the output, the arguments, the output, the gradients of
/// the arguments and the states.
class Positions {
 public:
  explicit Positions(const Attributes& attributes)
      : arguments_(attributes.shortcut ? 4 : 3), states_(attributes.momentum ? 2 : 3) {}

  std::size_t arguments() const { return arguments_; }
  std::size_t states() const { return states_; }
  bool has(Argument argument) const { return argument < arguments_; }
  /// Whether the array at this position of forward has the shape of the data.
  bool is_data(std::size_t position) const {
    return position == kData || position == kShortcut || position == arguments_;
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

#pragma once

#include <cstring>
#include <functional>

#include "kernels/name.h"
#include "kernels/values.h"

namespace fake_cuda {

/// A kernel that is to be launched: its name taken apart, and pointers to its arguments.
struct Launch {
  Name name;
  void** arguments;

  template <class T>
  T argument(std::size_t index) const {
    T value;
    std::memcpy(&value, arguments[index], sizeof value);
    return value;
  }
};

using Task = std::function<void()>;

// The forms that are known; none of them where the kernel is not of the form or its operator not
// known.
Task elementwise(const Launch& launch);  ///< functions of elements, sums of arrays
Task expression(const Launch& launch);   ///< of mshadow
Task random(const Launch& launch);
Task sgd(const Launch& launch);
Task split(const Launch& launch);
Task all_finite(const Launch& launch);

/// A function of numbers, by MXNet's name for it; empty where it is not known.
using Operator = std::function<double(const double*)>;
Operator find_operator(const Name& name);

}  // namespace fake_cuda

#pragma once

#include <string>

#include "fake_cuda/fake_cuda.h"

namespace gluon_syncbn::tests {

/// A setting of the fake CUDA, for as long as it lives.
class Setting {
 public:
  Setting(const char* name, long value) : name_(name), before_(fakeCudaSet(name, value)) {}
  ~Setting() { fakeCudaSet(name_, before_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
  long before_;
};

/// Faults of the fake CUDA (fakeCudaInject), for as long as it lives.
class Faults {
 public:
  explicit Faults(const std::string& faults) { fakeCudaInject(faults.c_str()); }
  ~Faults() { fakeCudaClearFaults(); }
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;
};

// How often the library has called the driver so far, on all GPUs.

inline long copies() { return fakeCudaCount("cuMemcpyAsync", -1); }
inline long allocations() {
  return fakeCudaCount("cuMemAlloc", -1) + fakeCudaCount("cuMemHostAlloc", -1);
}
inline long loads() { return fakeCudaCount("cuModuleLoadData", -1); }

}  // namespace gluon_syncbn::tests

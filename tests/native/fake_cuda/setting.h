#ifndef GLUON_SYNCBN_TESTS_NATIVE_FAKE_CUDA_SETTING_H_
#define GLUON_SYNCBN_TESTS_NATIVE_FAKE_CUDA_SETTING_H_

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

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_FAKE_CUDA_SETTING_H_

#ifndef GLUON_SYNCBN_TESTS_FAKE_CUDA_DIE_H_
#define GLUON_SYNCBN_TESTS_FAKE_CUDA_DIE_H_

#include <cstdio>
#include <cstdlib>
#include <string>

namespace fake_cuda {

/// Where a test asks for what the fake is not. To go on would prove nothing.
[[noreturn]] inline void die(const std::string& why) {
  std::fprintf(stderr, "fake CUDA: %s\n", why.c_str());
  std::abort();
}

}  // namespace fake_cuda

#endif  // GLUON_SYNCBN_TESTS_FAKE_CUDA_DIE_H_

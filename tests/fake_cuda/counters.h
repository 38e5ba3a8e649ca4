#ifndef GLUON_SYNCBN_TESTS_FAKE_CUDA_COUNTERS_H_
#define GLUON_SYNCBN_TESTS_FAKE_CUDA_COUNTERS_H_

#include <string>

namespace fake_cuda {

/// Notes that something happened on a device, or on none (-1).
void count(const std::string& what, int device);

/// How often it did; on all devices where `device` is -1.
long counted(const std::string& what, int device);

}  // namespace fake_cuda

#endif  // GLUON_SYNCBN_TESTS_FAKE_CUDA_COUNTERS_H_

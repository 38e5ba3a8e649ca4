#ifndef GLUON_SYNCBN_TESTS_FAKE_CUDA_FAULTS_H_
#define GLUON_SYNCBN_TESTS_FAKE_CUDA_FAULTS_H_

#include <cuda_runtime_api.h>

#include <string>

// Faults to order, in the environment (FAKE_CUDA_FAULTS) or by fakeCudaInject: one or several of
//
//   point[@device][#first[+]][=error]
//
// with ';' between them. A point is the name of a call, which then returns the error; "kernel",
// "copy" or "memset", which then breaks its device when the stream comes to it; or "context", which
// then cannot be made. The fault strikes the first time, or the time `first`, and with '+' every
// time after it. The error is a number of cudaError_t; without one it is what CUDA would say.

namespace fake_cuda {

void inject(const std::string& faults);
long clear_faults();

/// The error to return at this point now, or cudaSuccess.
cudaError_t fault_at(const char* point, int device);

/// Whether CUDA gives up the device after this error.
bool is_sticky(cudaError_t error);

}  // namespace fake_cuda

#endif  // GLUON_SYNCBN_TESTS_FAKE_CUDA_FAULTS_H_

#ifndef GLUON_SYNCBN_TESTS_FAKE_CUDA_FAKE_CUDA_H_
#define GLUON_SYNCBN_TESTS_FAKE_CUDA_FAKE_CUDA_H_

// What tests may ask of the fake CUDA runtime beside NVIDIA's own interface. Plain C, for ctypes.

#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Changes a setting of settings.h, by the name there ("DEVICES", "DELAY", ...). Returns its former
/// value. A name that does not exist ends the process.
long fakeCudaSet(const char* name, long value);

/// Adds faults, as faults.h describes them. A text that makes no sense ends the process.
void fakeCudaInject(const char* faults);
/// Takes all faults away. Returns how many times faults have struck since this was called last.
long fakeCudaClearFaults(void);

/// How often something happened: the name of a call, "kernel", "copy" or "memset" (done by a
/// stream), "blocking copy" (an asynchronous copy that kept its caller), "spinning wait" (for an
/// event without cudaEventBlockingSync), "fault". `device` -1: on all.
long fakeCudaCount(const char* what, int device);

int fakeCudaHasContext(int device);
/// As a new process would find the device: in order, without a context. Memory that is there stays.
void fakeCudaReset(int device);

/// Puts a kernel on the stream: `run` gets a copy of the arguments, which are searched for pointers
/// to memory that this device cannot reach. For kernels of tests, which have no device code.
cudaError_t fakeCudaLaunch(const char* kernel, const void* arguments, size_t bytes,
                           void (*run)(const void* arguments, long blocks), long blocks,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif  // GLUON_SYNCBN_TESTS_FAKE_CUDA_FAKE_CUDA_H_

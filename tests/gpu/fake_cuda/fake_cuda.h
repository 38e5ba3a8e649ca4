#pragma once

// What tests may ask of the fake CUDA beside CUDA's own interface. C functions, for ctypes.

#include <cuda_runtime_api.h>

#include <cstddef>

extern "C" {

/// Changes a setting of control.h, by the name there ("DEVICES", "DELAY", ...). Returns its former
/// value. A name that does not exist ends the process.
long fakeCudaSet(const char* name, long value);

/// Orders faults: one or several of
///
///   point[@device][#first[+]][=error]
///
/// with ';' between them. A point is the name of a call, which then returns the error; "kernel",
/// "copy" or "memset", which then breaks its device when the stream comes to it; or "context",
/// which then cannot be made. The fault strikes the first time, or the time `first`, and with '+'
/// every time after it. The error is a number of cudaError_t; without one it is the usual one.
void fakeCudaInject(const char* faults);
/// Takes all faults away, and mends what they broke. Returns how many times faults have struck
/// since this was called last.
long fakeCudaClearFaults();

/// How often a call was made. `device` -1: on all.
long fakeCudaCount(const char* call, int device);

/// How often the calling thread made a call.
long fakeCudaCountHere(const char* call);

int fakeCudaHasContext(int device);

/// Puts a kernel of a test on the stream: `run` gets a copy of the arguments, in which addresses of
/// memory are looked for that this device cannot reach.
cudaError_t fakeCudaLaunch(const void* arguments, std::size_t bytes,
                           void (*run)(const void* arguments), cudaStream_t stream);

}  // extern "C"

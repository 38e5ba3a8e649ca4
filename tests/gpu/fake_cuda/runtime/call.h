#pragma once

// This folder is the CUDA runtime that MXNet is linked with; the rest of the fake is the driver. It
// has its own last error, and its own idea of a thread's device.

#include <cuda_runtime_api.h>

#include "context.h"

namespace fake_cuda {

/// The error of the last call of this runtime that failed on this thread.
cudaError_t& last_error();

/// The device of the thread's context, or without a context the one last set by this runtime.
int current_device();
/// As cudaSetDevice. Before CUDA 12, the thread gets the context of the device only in the first
/// call that needs one.
cudaError_t set_current_device(int ordinal);

/// Begins a call: counts it, fails as a test has ordered, and makes what the call needs.
cudaError_t enter(const char* name, Needs needs);

/// One call of the runtime. Keeps the error for cudaGetLastError.
template <class Body>
cudaError_t call(const char* name, Needs needs, const Body& body) {
  cudaError_t status = enter(name, needs);
  if (status == cudaSuccess) status = body();
  if (status != cudaSuccess) last_error() = status;
  return status;
}

}  // namespace fake_cuda

#pragma once

// The functions of the driver (libcuda.so.1), which src/cuda calls, and MXNet some of them.

#include <cuda_runtime_api.h>

#include "context.h"

namespace fake_cuda {

/// What a call of the driver needs.
enum class CallNeeds {
  kNothing,
  kDriver,   ///< which does not survive a fork
  kContext,  ///< that of the thread, whose device may be broken
};

/// Begins a call: counts it, and fails as a test has ordered, or for want of what the call needs.
cudaError_t enter(const char* name, CallNeeds needs);

template <class Body>
cudaError_t driver_call(const char* name, CallNeeds needs, const Body& body) {
  const cudaError_t status = enter(name, needs);
  return status == cudaSuccess ? body() : status;
}
template <class Body>
cudaError_t in_context(const char* name, const Body& body) {
  return driver_call(name, CallNeeds::kContext, body);
}

}  // namespace fake_cuda

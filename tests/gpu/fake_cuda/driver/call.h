#pragma once

// The functions of the driver (libcuda.so.1), which src/cuda calls, and MXNet some of them.

#include <cuda_runtime_api.h>

#include "context.h"

namespace fake_cuda {

/// Begins a call: counts it, and fails as a test has ordered, or for want of what the call needs.
cudaError_t enter_driver(const char* name, Needs needs);

template <class Body>
cudaError_t driver_call(const char* name, Needs needs, const Body& body) {
  const cudaError_t status = enter_driver(name, needs);
  return status == cudaSuccess ? body() : status;
}
template <class Body>
cudaError_t in_context(const char* name, const Body& body) {
  return driver_call(name, Needs::kContext, body);
}

}  // namespace fake_cuda

#pragma once

#include <cuda_runtime_api.h>

namespace fake_cuda {

/// An error, as the runtime and the driver call it. Both give it the same number.
struct ErrorText {
  const char* runtime_name;
  const char* driver_name;
  const char* text;
};
ErrorText describe(cudaError_t error);

/// An attribute of a device.
cudaError_t attribute(int* value, int attribute, int ordinal);

}  // namespace fake_cuda

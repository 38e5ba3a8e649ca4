#include "errors.h"

#include <string>

#include "control.h"

namespace fake_cuda {

ErrorText describe(cudaError_t error) {
  switch (error) {
#define FAKE_CUDA_ERROR(name, driver_name, text) \
  case name:                                     \
    return {#name, driver_name, text}
    FAKE_CUDA_ERROR(cudaSuccess, "CUDA_SUCCESS", "no error");
    FAKE_CUDA_ERROR(cudaErrorInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument");
    FAKE_CUDA_ERROR(cudaErrorMemoryAllocation, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory");
    FAKE_CUDA_ERROR(cudaErrorInitializationError, "CUDA_ERROR_NOT_INITIALIZED",
                    "initialization error");
    FAKE_CUDA_ERROR(cudaErrorDevicesUnavailable, "CUDA_ERROR_DEVICE_UNAVAILABLE",
                    "all CUDA-capable devices are busy or unavailable");
    FAKE_CUDA_ERROR(cudaErrorNoDevice, "CUDA_ERROR_NO_DEVICE",
                    "no CUDA-capable device is detected");
    FAKE_CUDA_ERROR(cudaErrorInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal");
    FAKE_CUDA_ERROR(cudaErrorInvalidPtx, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed");
    FAKE_CUDA_ERROR(cudaErrorJitCompilerNotFound, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
                    "PTX JIT compiler library not found");
    FAKE_CUDA_ERROR(cudaErrorUnsupportedPtxVersion, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
                    "the provided PTX was compiled with an unsupported toolchain.");
    FAKE_CUDA_ERROR(cudaErrorIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS",
                    "an illegal memory access was encountered");
    FAKE_CUDA_ERROR(cudaErrorLaunchOutOfResources, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
                    "too many resources requested for launch");
    FAKE_CUDA_ERROR(cudaErrorLaunchFailure, "CUDA_ERROR_LAUNCH_FAILED",
                    "unspecified launch failure");
    FAKE_CUDA_ERROR(cudaErrorUnknown, "CUDA_ERROR_UNKNOWN", "unknown error");
#undef FAKE_CUDA_ERROR
    default:
      return {"an error without a name here", "an error without a name here",
              "an error without a text here"};
  }
}

cudaError_t attribute(int* value, int attribute, int /*ordinal*/) {
  constexpr int kMultiprocessors = 16;
  constexpr int kMajor = 75;
  constexpr int kMinor = 76;
  switch (attribute) {
    case kMultiprocessors:
      *value = 4;
      return cudaSuccess;
    case kMajor:
      *value = static_cast<int>(settings().capability / 10);
      return cudaSuccess;
    case kMinor:
      *value = static_cast<int>(settings().capability % 10);
      return cudaSuccess;
    default:
      die("attribute " + std::to_string(attribute) + " of devices is not imitated");
  }
}

}  // namespace fake_cuda

#pragma once

// The part of the CUDA 11 runtime's interface that src/cuda, the tests and the fake itself use, so
// that no CUDA has to be installed. What only MXNet calls is defined without a declaration.

#include <cstddef>

enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidContext = 201,
  cudaErrorECCUncorrectable = 214,
  cudaErrorPeerAccessUnsupported = 217,
  cudaErrorInvalidPtx = 218,
  cudaErrorJitCompilerNotFound = 221,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorPeerAccessNotEnabled = 705,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotPermitted = 800,
  cudaErrorNotSupported = 801,
  cudaErrorUnknown = 999,
};
using cudaError_t = cudaError;

enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault,
};

constexpr unsigned cudaEventDisableTiming = 2;
constexpr unsigned cudaHostAllocPortable = 1;
constexpr unsigned cudaHostAllocMapped = 2;
constexpr unsigned cudaStreamNonBlocking = 1;

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

/// The fields that somebody reads have their places in memory.
struct cudaDeviceProp {
  char name[256];
  char unused[104];
  int major;
  int minor;
  char rest[360];
};
static_assert(offsetof(cudaDeviceProp, major) == 360 && sizeof(cudaDeviceProp) == 728);

extern "C" {

cudaError_t cudaGetDeviceCount(int* number);
cudaError_t cudaGetDevice(int* ordinal);
cudaError_t cudaSetDevice(int ordinal);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal);
cudaError_t cudaDeviceCanAccessPeer(int* can, int ordinal, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);

cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

cudaError_t cudaMalloc(void** begin, std::size_t bytes);
cudaError_t cudaHostAlloc(void** begin, std::size_t bytes, unsigned flags);
cudaError_t cudaFree(void* begin);
cudaError_t cudaFreeHost(void* begin);
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* begin, int value, std::size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);

cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to);

}  // extern "C"

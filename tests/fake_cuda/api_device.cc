// Devices, peers and errors.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "call.h"
#include "settings.h"

using fake_cuda::call;
using fake_cuda::current_device;
using fake_cuda::device;
using fake_cuda::Device;
using fake_cuda::exists;
using fake_cuda::last_error;
using fake_cuda::Needs;
using fake_cuda::settings;
using fake_cuda::works_in_context;

namespace {

constexpr int kMultiprocessors = 108;
constexpr int kMostThreads = 1024;

cudaError_t version(const char* name, int* version) {
  return call(name, Needs::kNothing, [=] {
    *version = static_cast<int>(settings().version);
    return cudaSuccess;
  });
}

}  // namespace

extern "C" {

cudaError_t cudaDriverGetVersion(int* to) { return version("cudaDriverGetVersion", to); }
cudaError_t cudaRuntimeGetVersion(int* to) { return version("cudaRuntimeGetVersion", to); }

cudaError_t cudaGetDeviceCount(int* number) {
  return call("cudaGetDeviceCount", Needs::kDriver, [=] {
    *number = static_cast<int>(settings().devices);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* ordinal) {
  return call("cudaGetDevice", Needs::kDriver, [=] {
    *ordinal = current_device();
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int ordinal) {
  return call("cudaSetDevice", Needs::kDriver, [=] {
    if (!exists(ordinal)) return cudaErrorInvalidDevice;
    if (ordinal != current_device()) works_in_context() = false;
    current_device() = ordinal;
    // From CUDA 12 on the context is made at once, and its fault told.
    if (settings().version < 12000) return cudaSuccess;
    const cudaError_t status = device(ordinal).make_context();
    works_in_context() = status == cudaSuccess;
    return status == cudaSuccess ? device(ordinal).error() : status;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  return call("cudaGetDeviceProperties", Needs::kDriver, [=] {
    if (!exists(ordinal)) return cudaErrorInvalidDevice;
    std::memset(properties, 0, sizeof *properties);
    std::snprintf(properties->name, sizeof properties->name, "fake GPU %d", ordinal);
    properties->totalGlobalMem = static_cast<std::size_t>(settings().memory) << 20;
    properties->major = 8;
    properties->multiProcessorCount = kMultiprocessors;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = kMostThreads;
    properties->maxThreadsPerMultiProcessor = 2 * kMostThreads;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = kMostThreads;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 0x7fffffff;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 0xffff;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerMultiprocessor = 164 << 10;
    properties->regsPerBlock = properties->regsPerMultiprocessor = 64 << 10;
    properties->totalConstMem = 64 << 10;
    properties->textureAlignment = 512;
    properties->memPitch = 0x7fffffff;
    properties->unifiedAddressing = properties->canMapHostMemory = 1;
    properties->concurrentKernels = properties->asyncEngineCount = 1;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal) {
  return call("cudaDeviceGetAttribute", Needs::kDriver, [=] {
    if (!exists(ordinal)) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrMaxThreadsPerBlock:
        *value = kMostThreads;
        break;
      case cudaDevAttrMultiProcessorCount:
        *value = kMultiprocessors;
        break;
      case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = 2 * kMostThreads;
        break;
      case cudaDevAttrWarpSize:
        *value = 32;
        break;
      case cudaDevAttrMaxGridDimX:
        *value = 0x7fffffff;
        break;
      case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = 48 << 10;
        break;
      case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = 164 << 10;
        break;
      case cudaDevAttrComputeCapabilityMajor:
        *value = 8;
        break;
      case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        break;
      case cudaDevAttrUnifiedAddressing:
        *value = 1;
        break;
      case cudaDevAttrCanMapHostMemory:
        *value = 1;
        break;
      case cudaDevAttrComputeMode:
        *value = cudaComputeModeDefault;
        break;
      default:
        return cudaErrorNotSupported;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int ordinal) {
  return call("cudaDeviceGetPCIBusId", Needs::kDriver, [=] {
    if (!exists(ordinal)) return cudaErrorInvalidDevice;
    std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02X:00.0", ordinal + 1);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", Needs::kContext, [] {
    Device& current = device(current_device());
    current.synchronize();
    return current.error();
  });
}

cudaError_t cudaDeviceReset() {
  return call("cudaDeviceReset", Needs::kDriver, [] {
    device(current_device()).synchronize();
    device(current_device()).reset();
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int ordinal, int peer) {
  return call("cudaDeviceCanAccessPeer", Needs::kDriver, [=] {
    if (!exists(ordinal) || !exists(peer)) return cudaErrorInvalidDevice;
    *can = Device::can_reach(ordinal, peer);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int from, int to) {
  return call("cudaDeviceGetP2PAttribute", Needs::kDriver, [=] {
    if (!exists(from) || !exists(to) || from == to) return cudaErrorInvalidDevice;
    const bool can = Device::can_reach(from, to);
    *value = attribute == cudaDevP2PAttrPerformanceRank ? !can : can;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return call("cudaDeviceEnablePeerAccess", Needs::kContext, [=] {
    if (flags != 0) return cudaErrorInvalidValue;
    if (!exists(peer)) return cudaErrorInvalidDevice;
    return device(current_device()).enable_peer(peer);
  });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return call("cudaDeviceDisablePeerAccess", Needs::kContext, [=] {
    if (!exists(peer)) return cudaErrorInvalidDevice;
    return device(current_device()).disable_peer(peer);
  });
}

cudaError_t cudaGetLastError() {
  const cudaError_t last = last_error();
  last_error() = cudaSuccess;
  return last;
}
cudaError_t cudaPeekAtLastError() { return last_error(); }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define FAKE_CUDA_NAME(name) \
  case name:                 \
    return #name
    FAKE_CUDA_NAME(cudaSuccess);
    FAKE_CUDA_NAME(cudaErrorInvalidValue);
    FAKE_CUDA_NAME(cudaErrorMemoryAllocation);
    FAKE_CUDA_NAME(cudaErrorInitializationError);
    FAKE_CUDA_NAME(cudaErrorDevicesUnavailable);
    FAKE_CUDA_NAME(cudaErrorNoDevice);
    FAKE_CUDA_NAME(cudaErrorInvalidDevice);
    FAKE_CUDA_NAME(cudaErrorECCUncorrectable);
    FAKE_CUDA_NAME(cudaErrorInvalidResourceHandle);
    FAKE_CUDA_NAME(cudaErrorNotReady);
    FAKE_CUDA_NAME(cudaErrorIllegalAddress);
    FAKE_CUDA_NAME(cudaErrorLaunchOutOfResources);
    FAKE_CUDA_NAME(cudaErrorPeerAccessAlreadyEnabled);
    FAKE_CUDA_NAME(cudaErrorPeerAccessNotEnabled);
    FAKE_CUDA_NAME(cudaErrorPeerAccessUnsupported);
    FAKE_CUDA_NAME(cudaErrorTooManyPeers);
    FAKE_CUDA_NAME(cudaErrorLaunchFailure);
    FAKE_CUDA_NAME(cudaErrorNotPermitted);
    FAKE_CUDA_NAME(cudaErrorNotSupported);
    FAKE_CUDA_NAME(cudaErrorStreamCaptureUnsupported);
    FAKE_CUDA_NAME(cudaErrorUnknown);
#undef FAKE_CUDA_NAME
    default:
      return "an error that the fake CUDA has no name for";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInitializationError:
      return "initialization error";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorDevicesUnavailable:
      return "all CUDA-capable devices are busy or unavailable";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorUnknown:
      return "unknown error";
    default:
      return cudaGetErrorName(error);
  }
}

}  // extern "C"

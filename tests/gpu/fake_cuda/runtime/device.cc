// Devices, peers and errors.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "control.h"
#include "errors.h"
#include "runtime/call.h"

using fake_cuda::call;
using fake_cuda::current_device;
using fake_cuda::device;
using fake_cuda::exists;
using fake_cuda::last_error;
using fake_cuda::Needs;
using fake_cuda::settings;

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
  return call("cudaDriverGetVersion", Needs::kNothing, [=] {
    *version = static_cast<int>(settings().version);
    return cudaSuccess;
  });
}

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
    return fake_cuda::set_current_device(ordinal);
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  return call("cudaGetDeviceProperties", Needs::kDriver, [=] {
    if (!exists(ordinal)) return cudaErrorInvalidDevice;
    std::memset(properties, 0, sizeof *properties);
    std::snprintf(properties->name, sizeof properties->name, "fake GPU %d", ordinal);
    properties->major = static_cast<int>(settings().capability / 10);
    properties->minor = static_cast<int>(settings().capability % 10);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int ordinal) {
  return call("cudaDeviceGetAttribute", Needs::kDriver, [=] {
    if (!exists(ordinal)) return cudaErrorInvalidDevice;
    return fake_cuda::attribute(value, attribute, ordinal);
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int ordinal, int peer) {
  return call("cudaDeviceCanAccessPeer", Needs::kDriver, [=] {
    if (!exists(ordinal) || !exists(peer)) return cudaErrorInvalidDevice;
    *can = ordinal != peer;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return call("cudaDeviceEnablePeerAccess", Needs::kContext, [=] {
    if (flags != 0) return cudaErrorInvalidValue;
    if (!exists(peer)) return cudaErrorInvalidDevice;
    fake_cuda::wait_in_driver(&device(current_device()));
    return device(current_device()).enable_peer(peer);
  });
}

cudaError_t cudaGetLastError() {
  const cudaError_t last = last_error();
  last_error() = cudaSuccess;
  return last;
}
cudaError_t cudaPeekAtLastError() { return last_error(); }

const char* cudaGetErrorName(cudaError_t error) { return fake_cuda::describe(error).runtime_name; }
const char* cudaGetErrorString(cudaError_t error) { return fake_cuda::describe(error).text; }

}  // extern "C"

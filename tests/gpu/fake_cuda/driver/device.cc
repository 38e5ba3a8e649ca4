// Devices, contexts, peers and errors.

#include <cuda_runtime_api.h>

#include <cstdio>

#include "control.h"
#include "driver/call.h"
#include "errors.h"

using fake_cuda::device;
using fake_cuda::Device;
using fake_cuda::driver_call;
using fake_cuda::exists;
using fake_cuda::in_context;
using fake_cuda::Needs;
using fake_cuda::settings;

extern "C" {

cudaError_t cuInit(unsigned) {
  return driver_call("cuInit", Needs::kDriver, [] { return cudaSuccess; });
}

cudaError_t cuDriverGetVersion(int* version) {
  return driver_call("cuDriverGetVersion", Needs::kNothing, [=] {
    *version = static_cast<int>(settings().version);
    return cudaSuccess;
  });
}

cudaError_t cuGetErrorName(cudaError_t error, const char** name) {
  *name = fake_cuda::describe(error).driver_name;
  return cudaSuccess;
}
cudaError_t cuGetErrorString(cudaError_t error, const char** text) {
  *text = fake_cuda::describe(error).text;
  return cudaSuccess;
}

cudaError_t cuDeviceGetCount(int* number) {
  return driver_call("cuDeviceGetCount", Needs::kDriver, [=] {
    *number = static_cast<int>(settings().devices);
    return cudaSuccess;
  });
}

cudaError_t cuDeviceGet(int* ordinal, int wanted) {
  return driver_call("cuDeviceGet", Needs::kDriver, [=] {
    if (!exists(wanted)) return cudaErrorInvalidDevice;
    *ordinal = wanted;
    return cudaSuccess;
  });
}

cudaError_t cuDeviceGetName(char* name, int bytes, int ordinal) {
  return driver_call("cuDeviceGetName", Needs::kDriver, [=] {
    std::snprintf(name, static_cast<std::size_t>(bytes), "fake GPU %d", ordinal);
    return cudaSuccess;
  });
}

cudaError_t cuDeviceGetAttribute(int* value, int attribute, int ordinal) {
  return driver_call("cuDeviceGetAttribute", Needs::kDriver,
                     [=] { return fake_cuda::attribute(value, attribute, ordinal); });
}

cudaError_t cuDevicePrimaryCtxRetain(Device** context, int ordinal) {
  return driver_call("cuDevicePrimaryCtxRetain", Needs::kDriver, [=] {
    *context = &device(ordinal);
    return device(ordinal).make_context();
  });
}

cudaError_t cuCtxGetCurrent(Device** context) {
  *context = fake_cuda::thread_context();
  return cudaSuccess;
}

cudaError_t cuCtxSetCurrent(Device* context) {
  fake_cuda::count("cuCtxSetCurrent", -1);
  if (context && !context->has_context()) return cudaErrorInvalidContext;
  fake_cuda::thread_context() = context;
  return cudaSuccess;
}

}  // extern "C"

// The two calls of the driver that the library uses.

#include "call.h"
#include "device.h"

using fake_cuda::all_devices;
using fake_cuda::current_device;
using fake_cuda::Device;
using fake_cuda::device;
using fake_cuda::works_in_context;

extern "C" {

int cuCtxGetCurrent(void** context) {
  *context = works_in_context() ? &device(current_device()) : nullptr;
  return 0;
}

int cuCtxSetCurrent(void* context) {
  works_in_context() = context != nullptr;
  // A thread without a context is to the runtime one that works on the first device.
  current_device() = 0;
  for (const Device* each : all_devices()) {
    if (each == context) current_device() = each->ordinal();
  }
  return 0;
}

}  // extern "C"

#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "device.h"

namespace fake_cuda {

/// What a call of the driver or of the runtime needs. The driver has no context for a thread that
/// has set none; the runtime makes one.
enum class Needs {
  kNothing,
  kDriver,   ///< which does not survive a fork
  kContext,  ///< that of the thread, whose device may be broken
};

/// The device whose context the calling thread works in; null if it has none.
Device*& thread_context();

/// The device that the runtime has set for the calling thread.
int& chosen_device();

/// Of a process that forked after it had called CUDA, the child cannot. Without a GPU no call gets
/// so far.
bool is_forked();

/// The device of a stream. The default stream, which has no user here, is not imitated.
Device* device_of(cudaStream_t stream);

/// Waits for all work of the devices, or of `device` alone, as some calls of CUDA do while they
/// hold a lock that every launch needs: what a kernel waits for cannot be launched meanwhile.
void wait_in_driver(Device* device = nullptr);

/// Begins a call while `ordinal` is the device of the thread, or -1: counts it, and fails as a test
/// has ordered, or if there is no device.
cudaError_t begin_call(const char* name, Needs needs, int ordinal);

cudaError_t put(cudaStream_t stream, Work work);
/// Fails if the stream is not of the thread's context.
cudaError_t put_kernel(cudaStream_t stream, std::function<void()> kernel);
cudaError_t synchronize(cudaStream_t stream);

}  // namespace fake_cuda

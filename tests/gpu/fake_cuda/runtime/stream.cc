// Streams and events.

#include <cuda_runtime_api.h>

#include "event.h"
#include "runtime/call.h"

using fake_cuda::call;
using fake_cuda::current_device;
using fake_cuda::device;
using fake_cuda::Needs;

namespace {

/// A call that works in the context of the thread's device.
template <class Body>
cudaError_t in_context(const char* name, const Body& body) {
  return call(name, Needs::kContext, body);
}

cudaError_t new_stream(const char* name, cudaStream_t* stream) {
  return in_context(name, [=] { return fake_cuda::new_stream(stream, &device(current_device())); });
}
cudaError_t new_event(const char* name, cudaEvent_t* event, unsigned flags) {
  return in_context(name,
                    [=] { return fake_cuda::new_event(event, &device(current_device()), flags); });
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return new_stream("cudaStreamCreate", stream);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return new_stream("cudaStreamCreateWithFlags", stream);
}
// Horovod asks for priorities. A device without them has one, which is 0 (CUDA's manual).
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return new_stream("cudaStreamCreateWithPriority", stream);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return in_context("cudaDeviceGetStreamPriorityRange", [=] {
    if (least) *least = 0;
    if (greatest) *greatest = 0;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return in_context("cudaStreamDestroy", [=] { return fake_cuda::destroy_stream(stream); });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return in_context("cudaStreamSynchronize", [=] { return fake_cuda::synchronize_stream(stream); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return in_context("cudaStreamWaitEvent",
                    [=] { return fake_cuda::wait_for_event(stream, event); });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return new_event("cudaEventCreate", event, 0); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return new_event("cudaEventCreateWithFlags", event, flags);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return in_context("cudaEventDestroy", [=] { return fake_cuda::destroy_event(event); });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return in_context("cudaEventRecord", [=] { return fake_cuda::record_event(event, stream); });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return in_context("cudaEventSynchronize", [=] { return fake_cuda::synchronize_event(event); });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return in_context("cudaEventQuery", [=] { return fake_cuda::query_event(event); });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return in_context("cudaEventElapsedTime",
                    [=] { return fake_cuda::elapsed_time(milliseconds, from, to); });
}

}  // extern "C"

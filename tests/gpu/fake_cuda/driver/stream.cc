// Streams and events.

#include <cuda_runtime_api.h>

#include "control.h"
#include "driver/call.h"
#include "event.h"

using fake_cuda::in_context;
using fake_cuda::thread_context;

extern "C" {

// A device without priorities has one, which is 0 (CUDA's manual).
cudaError_t cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return in_context("cuCtxGetStreamPriorityRange", [=] {
    *least = *greatest = 0;
    return cudaSuccess;
  });
}
cudaError_t cuStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return in_context("cuStreamCreateWithPriority",
                    [=] { return fake_cuda::new_stream(stream, thread_context()); });
}
cudaError_t cuStreamDestroy_v2(cudaStream_t stream) {
  return in_context("cuStreamDestroy", [=] { return fake_cuda::destroy_stream(stream); });
}
cudaError_t cuStreamSynchronize(cudaStream_t stream) {
  return in_context("cuStreamSynchronize", [=] { return fake_cuda::synchronize_stream(stream); });
}

cudaError_t cuEventCreate(cudaEvent_t* event, unsigned flags) {
  return in_context("cuEventCreate",
                    [=] { return fake_cuda::new_event(event, thread_context(), flags); });
}
cudaError_t cuEventDestroy_v2(cudaEvent_t event) {
  return in_context("cuEventDestroy", [=] { return fake_cuda::destroy_event(event); });
}
cudaError_t cuEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return in_context("cuEventRecord", [=] { return fake_cuda::record_event(event, stream); });
}
cudaError_t cuEventQuery(cudaEvent_t event) {
  return in_context("cuEventQuery", [=] {
    if (event->device != thread_context()) fake_cuda::count("cuEventQuery of another GPU", -1);
    return fake_cuda::query_event(event);
  });
}
cudaError_t cuStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return in_context("cuStreamWaitEvent", [=] { return fake_cuda::wait_for_event(stream, event); });
}
cudaError_t cuEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return in_context("cuEventElapsedTime",
                    [=] { return fake_cuda::elapsed_time(milliseconds, from, to); });
}

}  // extern "C"

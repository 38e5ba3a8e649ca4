#include "event.h"

#include <chrono>
#include <utility>

#include "context.h"
#include "control.h"

namespace fake_cuda {

cudaError_t new_stream(cudaStream_t* stream, Device* device) {
  *stream = device->new_stream();
  return cudaSuccess;
}
cudaError_t destroy_stream(cudaStream_t stream) {
  device_of(stream)->remove_stream(stream);
  return cudaSuccess;
}
cudaError_t synchronize_stream(cudaStream_t stream) {
  return settings().ignore_stream_synchronize ? cudaSuccess : synchronize(stream);
}
cudaError_t wait_for_event(cudaStream_t stream, cudaEvent_t event) {
  const PointPtr point = event->point();
  if (!point) return cudaSuccess;
  return put(stream, {nullptr, [point] { point->wait(); }});
}

cudaError_t new_event(cudaEvent_t* event, Device* device, unsigned flags) {
  *event = new CUevent_st{device, flags};
  return cudaSuccess;
}
cudaError_t destroy_event(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t record_event(cudaEvent_t event, cudaStream_t stream) {
  if (event->device != device_of(stream)) return cudaErrorInvalidResourceHandle;
  if (event->device->error() != cudaSuccess) return event->device->error();
  PointPtr point = stream->point();
  const std::lock_guard<std::mutex> lock(event->mutex);
  event->last = std::move(point);
  return cudaSuccess;
}
cudaError_t synchronize_event(cudaEvent_t event) {
  if (settings().ignore_event_synchronize) return cudaSuccess;
  if (const PointPtr point = event->point()) point->wait();
  return event->device->error();
}
cudaError_t query_event(cudaEvent_t event) {
  if (settings().ignore_event_synchronize) return cudaSuccess;
  if (event->device->error() != cudaSuccess) return event->device->error();
  const PointPtr point = event->point();
  return !point || point->reached() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t elapsed_time(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const PointPtr begin = from->point();
  const PointPtr end = to->point();
  if ((from->flags | to->flags) & cudaEventDisableTiming || !begin || !end) {
    return cudaErrorInvalidResourceHandle;
  }
  if (!begin->reached() || !end->reached()) return cudaErrorNotReady;
  const std::chrono::duration<float, std::milli> time = end->when() - begin->when();
  *milliseconds = time.count();
  return cudaSuccess;
}

}  // namespace fake_cuda

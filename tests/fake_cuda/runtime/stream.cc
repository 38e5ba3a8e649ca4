// Streams and events.

#include <cuda_runtime_api.h>

#include <chrono>
#include <mutex>
#include <utility>

#include "control.h"
#include "runtime/call.h"

using fake_cuda::call;
using fake_cuda::current_device;
using fake_cuda::Device;
using fake_cuda::device;
using fake_cuda::device_of;
using fake_cuda::Needs;
using fake_cuda::PointPtr;
using fake_cuda::settings;

struct CUevent_st {
  Device* device = nullptr;
  unsigned flags = 0;
  std::mutex mutex{};
  PointPtr last{};  ///< none: as if reached

  PointPtr point() {
    const std::lock_guard<std::mutex> lock(mutex);
    return last;
  }
};

namespace {

cudaError_t new_stream(cudaStream_t* stream) {
  *stream = device(current_device()).new_stream();
  return cudaSuccess;
}

cudaError_t new_event(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st{&device(current_device()), flags};
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return call("cudaStreamCreate", Needs::kContext, [=] { return new_stream(stream); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return call("cudaStreamCreateWithFlags", Needs::kContext, [=] { return new_stream(stream); });
}

// Horovod asks for priorities. A device without them has one, which is 0 (CUDA's manual).
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return call("cudaStreamCreateWithPriority", Needs::kContext, [=] { return new_stream(stream); });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call("cudaDeviceGetStreamPriorityRange", Needs::kContext, [=] {
    if (least) *least = 0;
    if (greatest) *greatest = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call("cudaStreamDestroy", Needs::kContext, [=] {
    device_of(stream)->remove_stream(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call("cudaStreamSynchronize", Needs::kContext, [=] {
    if (settings().ignore_stream_synchronize) return cudaSuccess;
    return fake_cuda::synchronize(stream);
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call("cudaStreamWaitEvent", Needs::kContext, [=] {
    const PointPtr point = event->point();
    if (!point) return cudaSuccess;
    return fake_cuda::put(stream, {nullptr, [point] { point->wait(); }});
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return call("cudaEventCreate", Needs::kContext, [=] { return new_event(event, 0); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call("cudaEventCreateWithFlags", Needs::kContext, [=] { return new_event(event, flags); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call("cudaEventDestroy", Needs::kContext, [=] {
    delete event;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call("cudaEventRecord", Needs::kContext, [=] {
    if (event->device != device_of(stream)) return cudaErrorInvalidResourceHandle;
    if (event->device->error() != cudaSuccess) return event->device->error();
    PointPtr point = stream->point();
    const std::lock_guard<std::mutex> lock(event->mutex);
    event->last = std::move(point);
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call("cudaEventSynchronize", Needs::kContext, [=] {
    if (settings().ignore_event_synchronize) return cudaSuccess;
    if (const PointPtr point = event->point()) point->wait();
    return event->device->error();
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call("cudaEventQuery", Needs::kContext, [=] {
    if (settings().ignore_event_synchronize) return cudaSuccess;
    if (event->device->error() != cudaSuccess) return event->device->error();
    const PointPtr point = event->point();
    return !point || point->reached() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return call("cudaEventElapsedTime", Needs::kContext, [=] {
    const PointPtr begin = from->point();
    const PointPtr end = to->point();
    if ((from->flags | to->flags) & cudaEventDisableTiming || !begin || !end) {
      return cudaErrorInvalidResourceHandle;
    }
    if (!begin->reached() || !end->reached()) return cudaErrorNotReady;
    const std::chrono::duration<float, std::milli> time = end->when() - begin->when();
    *milliseconds = time.count();
    return cudaSuccess;
  });
}

}  // extern "C"

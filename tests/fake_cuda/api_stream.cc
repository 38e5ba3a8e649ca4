// Streams and events.

#include <cuda_runtime_api.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "call.h"
#include "counters.h"
#include "settings.h"

namespace fake_cuda {
namespace {

/// What Event::record leaves.
class Event {
 public:
  Event(Device* device, unsigned flags) : device_(device), flags_(flags) {}

  Device* device() const { return device_; }
  bool spins() const { return !(flags_ & cudaEventBlockingSync); }
  bool has_time() const { return !(flags_ & cudaEventDisableTiming); }

  void set(PointPtr point) {
    const std::lock_guard<std::mutex> lock(mutex_);
    point_ = std::move(point);
  }
  PointPtr point() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return point_;
  }

 private:
  Device* const device_;
  const unsigned flags_;
  std::mutex mutex_;
  PointPtr point_;  // none: as if reached
};

/// Objects by what their users hold of them.
template <class Handle, class Object>
class Handles {
 public:
  Handle add(std::shared_ptr<Object> object) {
    const auto handle = reinterpret_cast<Handle>(object.get());
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_[handle] = std::move(object);
    return handle;
  }
  std::shared_ptr<Object> get(Handle handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Object> remove(Handle handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    auto object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

  static Handles& all() {
    static Handles& the = *new Handles;
    return the;
  }

 private:
  std::mutex mutex_;
  std::map<Handle, std::shared_ptr<Object>> objects_;
};
using Streams = Handles<cudaStream_t, Stream>;
using Events = Handles<cudaEvent_t, Event>;
using Graphs = Handles<cudaGraph_t, std::vector<Work>>;

cudaError_t new_stream(cudaStream_t* handle, unsigned flags) {
  Device& current = device(current_device());
  *handle = Streams::all().add(current.new_stream(!(flags & cudaStreamNonBlocking)));
  return cudaSuccess;
}

cudaError_t new_event(cudaEvent_t* handle, unsigned flags) {
  *handle = Events::all().add(std::make_shared<Event>(&device(current_device()), flags));
  return cudaSuccess;
}

}  // namespace

StreamPtr stream_of(cudaStream_t handle, cudaError_t* status) {
  if (is_default(handle)) return nullptr;
  auto stream = Streams::all().get(handle);
  if (!stream) *status = cudaErrorInvalidResourceHandle;
  return stream;
}

}  // namespace fake_cuda

using fake_cuda::call;
using fake_cuda::Device;
using fake_cuda::device_of;
using fake_cuda::Events;
using fake_cuda::Graphs;
using fake_cuda::is_default;
using fake_cuda::Needs;
using fake_cuda::PointPtr;
using fake_cuda::settings;
using fake_cuda::stream_of;
using fake_cuda::Streams;
using fake_cuda::Work;

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return call("cudaStreamCreate", Needs::kContext,
              [=] { return fake_cuda::new_stream(stream, cudaStreamDefault); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return call("cudaStreamCreateWithFlags", Needs::kContext,
              [=] { return fake_cuda::new_stream(stream, flags); });
}

// A device without priorities has one, which is 0 (CUDA's manual).
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return call("cudaStreamCreateWithPriority", Needs::kContext,
              [=] { return fake_cuda::new_stream(stream, flags); });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call("cudaDeviceGetStreamPriorityRange", Needs::kContext, [=] {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return call("cudaStreamDestroy", Needs::kContext, [=] {
    const auto stream = Streams::all().remove(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    stream->device()->remove_stream(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call("cudaStreamSynchronize", Needs::kContext, [=] {
    if (settings().ignore_stream_synchronize) return cudaSuccess;
    return fake_cuda::synchronize(stream);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return call("cudaStreamQuery", Needs::kContext, [=] {
    cudaError_t status = cudaSuccess;
    const auto stream = stream_of(handle, &status);
    if (status != cudaSuccess) return status;
    Device& device = device_of(stream);
    if (device.error() != cudaSuccess) return device.error();
    const PointPtr point = stream ? stream->point() : device.point_of_legacy();
    return point->reached() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned) {
  return call("cudaStreamWaitEvent", Needs::kContext, [=] {
    const auto event = Events::all().get(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    const PointPtr point = event->point();
    if (!point || settings().ignore_stream_wait) return cudaSuccess;
    return fake_cuda::put(stream, {nullptr, [point] { point->wait(); }});
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return call("cudaLaunchHostFunc", Needs::kContext,
              [=] { return fake_cuda::put(stream, {"host function", [=] { function(data); }}); });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
  return call("cudaStreamBeginCapture", Needs::kContext, [=] {
    cudaError_t status = cudaSuccess;
    const auto stream = stream_of(handle, &status);
    if (!stream) return cudaErrorStreamCaptureUnsupported;
    stream->begin_capture();
    return status;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return call("cudaStreamEndCapture", Needs::kContext, [=] {
    cudaError_t status = cudaSuccess;
    const auto stream = stream_of(handle, &status);
    if (!stream || !stream->is_capturing()) return cudaErrorStreamCaptureUnmatched;
    *graph = Graphs::all().add(std::make_shared<std::vector<Work>>(stream->end_capture()));
    return status;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* capturing) {
  return call("cudaStreamIsCapturing", Needs::kContext, [=] {
    cudaError_t status = cudaSuccess;
    const auto stream = stream_of(handle, &status);
    const bool active = stream && stream->is_capturing();
    *capturing = active ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return status;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call("cudaGraphDestroy", Needs::kContext,
              [=] { return Graphs::all().remove(graph) ? cudaSuccess : cudaErrorInvalidValue; });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return call("cudaEventCreate", Needs::kContext,
              [=] { return fake_cuda::new_event(event, cudaEventDefault); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call("cudaEventCreateWithFlags", Needs::kContext,
              [=] { return fake_cuda::new_event(event, flags); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call("cudaEventDestroy", Needs::kContext, [=] {
    return Events::all().remove(event) ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  return call("cudaEventRecord", Needs::kContext, [=] {
    const auto event = Events::all().get(handle);
    cudaError_t status = cudaSuccess;
    const auto stream = stream_of(stream_handle, &status);
    if (!event || status != cudaSuccess) return cudaErrorInvalidResourceHandle;
    Device& device = device_of(stream);
    if (event->device() != &device) return cudaErrorInvalidResourceHandle;
    if (device.error() != cudaSuccess) return device.error();
    event->set(stream ? stream->point() : device.point_of_legacy());
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return call("cudaEventSynchronize", Needs::kContext, [=] {
    const auto event = Events::all().get(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    if (settings().ignore_event_synchronize) return cudaSuccess;
    if (event->spins()) fake_cuda::count("spinning wait", event->device()->ordinal());
    if (const PointPtr point = event->point()) point->wait();
    return event->device()->error();
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return call("cudaEventQuery", Needs::kContext, [=] {
    const auto event = Events::all().get(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    if (event->device()->error() != cudaSuccess) return event->device()->error();
    const PointPtr point = event->point();
    return !point || point->reached() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return call("cudaEventElapsedTime", Needs::kContext, [=] {
    const auto begin = Events::all().get(from);
    const auto end = Events::all().get(to);
    if (!begin || !end || !begin->has_time() || !end->has_time() || !begin->point() ||
        !end->point()) {
      return cudaErrorInvalidResourceHandle;
    }
    if (!begin->point()->reached() || !end->point()->reached()) return cudaErrorNotReady;
    const std::chrono::duration<float, std::milli> time =
        end->point()->when() - begin->point()->when();
    *milliseconds = time.count();
    return cudaSuccess;
  });
}

}  // extern "C"

#include "call.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <utility>

#include "counters.h"
#include "faults.h"
#include "settings.h"

namespace fake_cuda {
namespace {

/// Of a process that forked after it had called CUDA, the child cannot. Without a GPU no call gets
/// so far.
bool is_forked() {
  if (settings().devices == 0) return false;
  static std::atomic<int> owner{0};
  int expected = 0;
  const int self = getpid();
  return !owner.compare_exchange_strong(expected, self) && expected != self;
}

}  // namespace

cudaError_t& last_error() {
  static thread_local cudaError_t last = cudaSuccess;
  return last;
}

cudaError_t enter(const char* name, Needs needs) {
  // First of all: in a child, locks may be held by threads that are not there.
  if (needs != Needs::kNothing && is_forked()) return cudaErrorInitializationError;
  if (in_stream_thread()) return cudaErrorNotPermitted;
  const int current = current_device();
  count(name, needs == Needs::kContext ? current : -1);
  if (needs != Needs::kNothing && settings().devices == 0) return cudaErrorNoDevice;
  const cudaError_t fault = fault_at(name, current);
  if (fault != cudaSuccess) {
    if (is_sticky(fault)) device(current).break_with(fault);
    return fault;
  }
  if (needs != Needs::kContext) return cudaSuccess;
  const cudaError_t status = device(current).make_context();
  works_in_context() = status == cudaSuccess;
  return status == cudaSuccess ? device(current).error() : status;
}

void leave_with(const char* name, cudaError_t error) {
  last_error() = error;
  if (!settings().tell) return;
  std::fprintf(stderr, "fake CUDA: thread %ld, device %d: %s: %s\n", syscall(SYS_gettid),
               current_device(), name, cudaGetErrorName(error));
}

bool is_default(cudaStream_t handle) { return !handle || handle == cudaStreamLegacy; }

Device& device_of(const StreamPtr& stream) {
  return stream ? *stream->device() : device(current_device());
}

cudaError_t put(cudaStream_t handle, Work work) {
  cudaError_t status = cudaSuccess;
  const StreamPtr stream = stream_of(handle, &status);
  if (status != cudaSuccess) return status;
  if (device_of(stream).error() != cudaSuccess) return device_of(stream).error();
  if (stream) {
    stream->put(std::move(work));
  } else {
    device(current_device()).put_on_legacy(std::move(work));
  }
  return cudaSuccess;
}

cudaError_t synchronize(cudaStream_t handle) {
  cudaError_t status = cudaSuccess;
  const StreamPtr stream = stream_of(handle, &status);
  if (status != cudaSuccess) return status;
  if (stream && stream->is_capturing()) return cudaErrorStreamCaptureUnsupported;
  Device& on = device_of(stream);
  (stream ? stream->point() : on.point_of_legacy())->wait();
  return on.error();
}

}  // namespace fake_cuda

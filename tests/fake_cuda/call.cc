#include "call.h"

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "control.h"

namespace fake_cuda {
namespace {

std::mutex& driver() {
  static std::mutex& the = *new std::mutex;
  return the;
}

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
  if (is_sticky(fault)) device(current).break_with(fault);
  if (fault != cudaSuccess || needs != Needs::kContext) return fault;
  const cudaError_t status = device(current).make_context();
  works_in_context() = status == cudaSuccess;
  return status == cudaSuccess ? device(current).error() : status;
}

Device* device_of(cudaStream_t stream) {
  if (!stream) die("the default stream is not imitated");
  return stream->device();
}

void wait_in_driver(Device* of) {
  const std::lock_guard<std::mutex> lock(driver());
  if (of) return of->synchronize();
  for (int i = 0; exists(i); ++i) device(i).synchronize();
}

cudaError_t put(cudaStream_t stream, Work work) {
  const std::lock_guard<std::mutex> lock(driver());
  const cudaError_t error = device_of(stream)->error();
  if (error == cudaSuccess) stream->put(std::move(work));
  return error;
}

cudaError_t put_kernel(cudaStream_t stream, std::function<void()> kernel) {
  if (device_of(stream)->ordinal() != current_device()) return cudaErrorInvalidResourceHandle;
  return put(stream, {"kernel", std::move(kernel)});
}

cudaError_t synchronize(cudaStream_t stream) {
  Device* const device = device_of(stream);
  if (stream->is_capturing()) return cudaErrorStreamCaptureUnsupported;
  stream->point()->wait();
  return device->error();
}

}  // namespace fake_cuda

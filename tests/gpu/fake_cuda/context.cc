#include "context.h"

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

}  // namespace

Device*& thread_context() {
  static thread_local Device* context = nullptr;
  return context;
}

int& chosen_device() {
  static thread_local int chosen = 0;
  return chosen;
}

bool is_forked() {
  if (settings().devices == 0) return false;
  static std::atomic<int> owner{0};
  int expected = 0;
  const int self = getpid();
  return !owner.compare_exchange_strong(expected, self) && expected != self;
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

cudaError_t begin_call(const char* name, Needs needs, int ordinal) {
  // First of all: in a child, threads that are not there may hold locks.
  if (needs != Needs::kNothing && is_forked()) return cudaErrorInitializationError;
  if (in_stream_thread()) return cudaErrorNotPermitted;
  count(name, needs == Needs::kContext ? ordinal : -1);
  if (needs != Needs::kNothing && settings().devices == 0) return cudaErrorNoDevice;
  const cudaError_t fault = fault_at(name, ordinal);
  if (ordinal >= 0 && is_sticky(fault)) device(ordinal).break_with(fault);
  return fault;
}

cudaError_t put(cudaStream_t stream, Work work) {
  const std::lock_guard<std::mutex> lock(driver());
  const cudaError_t error = device_of(stream)->error();
  if (error == cudaSuccess) stream->put(std::move(work));
  return error;
}

cudaError_t put_kernel(cudaStream_t stream, std::function<void()> kernel) {
  if (device_of(stream) != thread_context()) return cudaErrorInvalidResourceHandle;
  return put(stream, {"kernel", std::move(kernel)});
}

cudaError_t synchronize(cudaStream_t stream) {
  Device* const device = device_of(stream);
  stream->point()->wait();
  return device->error();
}

}  // namespace fake_cuda

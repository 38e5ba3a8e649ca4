#include "runtime/call.h"

#include <utility>

#include "control.h"

namespace fake_cuda {
namespace {

/// Makes the context of the device that of the thread.
cudaError_t work_in_context(Device* of) {
  const cudaError_t status = of->make_context();
  if (status != cudaSuccess) return status;
  thread_context() = of;
  return of->error();
}

}  // namespace

cudaError_t& last_error() {
  static thread_local cudaError_t last = cudaSuccess;
  return last;
}

int current_device() {
  const Device* const context = thread_context();
  return context ? context->ordinal() : chosen_device();
}

cudaError_t set_current_device(int ordinal) {
  if (ordinal != current_device()) thread_context() = nullptr;
  chosen_device() = ordinal;
  // From CUDA 12 on the context is made at once, and its fault told.
  return settings().version < 12000 ? cudaSuccess : work_in_context(&device(ordinal));
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
  return work_in_context(&device(current));
}

cudaError_t put_kernel(cudaStream_t stream, std::function<void()> kernel) {
  if (device_of(stream)->ordinal() != current_device()) return cudaErrorInvalidResourceHandle;
  return put(stream, {"kernel", std::move(kernel)});
}

}  // namespace fake_cuda

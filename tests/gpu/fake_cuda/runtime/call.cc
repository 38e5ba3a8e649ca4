#include "runtime/call.h"

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
  const int current = current_device();
  const cudaError_t status = begin_call(name, needs, current);
  if (status != cudaSuccess || needs != Needs::kContext) return status;
  return work_in_context(&device(current));
}

}  // namespace fake_cuda

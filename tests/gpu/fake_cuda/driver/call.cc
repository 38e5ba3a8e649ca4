#include "driver/call.h"

namespace fake_cuda {

cudaError_t enter_driver(const char* name, Needs needs) {
  Device* const context = thread_context();
  const cudaError_t status = begin_call(name, needs, context ? context->ordinal() : -1);
  if (status != cudaSuccess || needs != Needs::kContext) return status;
  return context ? context->error() : cudaErrorInvalidContext;
}

}  // namespace fake_cuda

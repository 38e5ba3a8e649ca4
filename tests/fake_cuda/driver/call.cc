#include "driver/call.h"

#include "control.h"

namespace fake_cuda {

cudaError_t enter_driver(const char* name, Needs needs) {
  // First of all: in a child, threads that are not there may hold locks.
  if (needs != Needs::kNothing && is_forked()) return cudaErrorInitializationError;
  if (in_stream_thread()) return cudaErrorNotPermitted;
  Device* const context = thread_context();
  const int ordinal = context ? context->ordinal() : -1;
  count(name, needs == Needs::kContext ? ordinal : -1);
  if (needs != Needs::kNothing && settings().devices == 0) return cudaErrorNoDevice;
  const cudaError_t fault = fault_at(name, ordinal);
  if (context && is_sticky(fault)) context->break_with(fault);
  if (fault != cudaSuccess || needs != Needs::kContext) return fault;
  return context ? context->error() : cudaErrorInvalidContext;
}

}  // namespace fake_cuda

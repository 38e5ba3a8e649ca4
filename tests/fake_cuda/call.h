#ifndef GLUON_SYNCBN_TESTS_FAKE_CUDA_CALL_H_
#define GLUON_SYNCBN_TESTS_FAKE_CUDA_CALL_H_

#include <cuda_runtime_api.h>

#include "device.h"

namespace fake_cuda {

/// What a call makes where it is not there yet.
enum class Needs {
  kNothing,
  kDriver,   ///< which does not survive a fork
  kContext,  ///< that of the thread's device, which may be broken
};

/// The error of the last call that failed on this thread.
cudaError_t& last_error();

/// What comes before the work of a call: its number, faults, and what it needs.
cudaError_t enter(const char* name, Needs needs);

/// Keeps the error of a call.
void leave_with(const char* name, cudaError_t error);

/// One call of the runtime. Its error stays for cudaGetLastError.
template <class Body>
cudaError_t call(const char* name, Needs needs, const Body& body) {
  cudaError_t status = enter(name, needs);
  if (status == cudaSuccess) status = body();
  if (status != cudaSuccess) leave_with(name, status);
  return status;
}

/// The stream of a handle; null where there is none (the default stream).
StreamPtr stream_of(cudaStream_t handle, cudaError_t* status);

/// Puts work on the stream of a handle, of the thread's device where that is the default stream.
cudaError_t put(cudaStream_t handle, Work work);

/// The device of a stream, that of the thread where it is the default stream.
Device& device_of(const StreamPtr& stream);

bool is_default(cudaStream_t handle);
cudaError_t synchronize(cudaStream_t handle);

}  // namespace fake_cuda

#endif  // GLUON_SYNCBN_TESTS_FAKE_CUDA_CALL_H_

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

/// What comes before the work of a call: it is counted, may fail, and gets what it needs.
cudaError_t enter(const char* name, Needs needs);

/// One call of the runtime. Its error stays for cudaGetLastError.
template <class Body>
cudaError_t call(const char* name, Needs needs, const Body& body) {
  cudaError_t status = enter(name, needs);
  if (status == cudaSuccess) status = body();
  if (status != cudaSuccess) last_error() = status;
  return status;
}

/// The device of a stream. The default stream, which nobody here uses, is not imitated.
Device* device_of(cudaStream_t stream);

/// Waits for all work of the devices, or of `device` alone, as some calls of CUDA do while they
/// hold a lock that every launch needs: what a kernel waits for cannot be launched meanwhile.
void wait_in_driver(Device* device = nullptr);

cudaError_t put(cudaStream_t stream, Work work);
/// The same for a kernel, which starts on a stream of the thread's device only.
cudaError_t put_kernel(cudaStream_t stream, std::function<void()> kernel);
cudaError_t synchronize(cudaStream_t stream);

}  // namespace fake_cuda

#endif  // GLUON_SYNCBN_TESTS_FAKE_CUDA_CALL_H_

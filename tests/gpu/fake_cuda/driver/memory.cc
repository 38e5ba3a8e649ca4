// Memory and copies.

#include <cuda_runtime_api.h>

#include "driver/call.h"
#include "transfer.h"

using fake_cuda::in_context;
using fake_cuda::thread_context;

extern "C" {

cudaError_t cuMemAlloc_v2(void** begin, std::size_t bytes) {
  return in_context("cuMemAlloc",
                    [=] { return fake_cuda::take(begin, bytes, thread_context()->ordinal()); });
}
cudaError_t cuMemHostAlloc(void** begin, std::size_t bytes, unsigned flags) {
  return in_context("cuMemHostAlloc", [=] {
    if (flags != (cudaHostAllocPortable | cudaHostAllocMapped)) return cudaErrorInvalidValue;
    fake_cuda::wait_in_driver();
    return fake_cuda::take(begin, bytes, -1);
  });
}
cudaError_t cuMemFree_v2(void* begin) {
  return in_context("cuMemFree", [=] { return fake_cuda::give_back(begin, true); });
}
cudaError_t cuMemFreeHost(void* begin) {
  return in_context("cuMemFreeHost", [=] { return fake_cuda::give_back(begin, false); });
}
cudaError_t cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total) {
  return in_context("cuMemGetInfo", [=] {
    *total = fake_cuda::Device::all_memory();
    *free_bytes = thread_context()->free_memory();
    return cudaSuccess;
  });
}
cudaError_t cuMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  return in_context("cuMemcpyAsync", [=] {
    return fake_cuda::copy(fake_cuda::row(to, from, bytes), cudaMemcpyDefault, stream);
  });
}
cudaError_t cuMemsetD8Async(void* begin, unsigned char value, std::size_t bytes,
                            cudaStream_t stream) {
  return in_context("cuMemsetD8Async", [=] { return fake_cuda::set(begin, value, bytes, stream); });
}

}  // extern "C"

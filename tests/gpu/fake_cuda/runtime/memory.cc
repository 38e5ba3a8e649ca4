// Memory and copies.

#include <cuda_runtime_api.h>

#include "context.h"
#include "runtime/call.h"
#include "transfer.h"

using fake_cuda::call;
using fake_cuda::copy;
using fake_cuda::current_device;
using fake_cuda::device;
using fake_cuda::Needs;
using fake_cuda::row;

extern "C" {

cudaError_t cudaMalloc(void** begin, size_t bytes) {
  return call("cudaMalloc", Needs::kContext,
              [=] { return fake_cuda::take(begin, bytes, current_device()); });
}

cudaError_t cudaHostAlloc(void** begin, size_t bytes, unsigned) {
  return call("cudaHostAlloc", Needs::kContext, [=] {
    fake_cuda::wait_in_driver();
    return fake_cuda::take(begin, bytes, -1);
  });
}

cudaError_t cudaFree(void* begin) {
  return call("cudaFree", Needs::kContext, [=] { return fake_cuda::give_back(begin, true); });
}

cudaError_t cudaFreeHost(void* begin) {
  return call("cudaFreeHost", Needs::kContext, [=] { return fake_cuda::give_back(begin, false); });
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  return call("cudaMemGetInfo", Needs::kContext, [=] {
    *total = fake_cuda::Device::all_memory();
    *free_bytes = device(current_device()).free_memory();
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call("cudaMemcpyAsync", Needs::kContext,
              [=] { return copy(row(to, from, bytes), kind, stream); });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                cudaStream_t stream) {
  return call("cudaMemcpyPeerAsync", Needs::kContext,
              [=] { return copy(row(to, from, bytes), cudaMemcpyDeviceToDevice, stream); });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return call("cudaMemcpy2DAsync", Needs::kContext, [=] {
    const fake_cuda::Block block{static_cast<char*>(to),
                                 static_cast<const char*>(from),
                                 to_pitch,
                                 from_pitch,
                                 width,
                                 height};
    return copy(block, kind, stream);
  });
}

cudaError_t cudaMemsetAsync(void* begin, int value, size_t bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync", Needs::kContext,
              [=] { return fake_cuda::set(begin, value, bytes, stream); });
}

}  // extern "C"

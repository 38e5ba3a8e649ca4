#pragma once

#include <cuda_runtime_api.h>

#include <mutex>

#include "device.h"
#include "stream.h"

struct CUevent_st {
  fake_cuda::Device* device = nullptr;
  unsigned flags = 0;
  std::mutex mutex{};
  fake_cuda::PointPtr last{};  ///< null: reached

  fake_cuda::PointPtr point() {
    const std::lock_guard<std::mutex> lock(mutex);
    return last;
  }
};

namespace fake_cuda {

// The calls of streams and events, which the runtime and the driver share.

cudaError_t new_stream(cudaStream_t* stream, Device* device);
cudaError_t destroy_stream(cudaStream_t stream);
cudaError_t synchronize_stream(cudaStream_t stream);
cudaError_t wait_for_event(cudaStream_t stream, cudaEvent_t event);

cudaError_t new_event(cudaEvent_t* event, Device* device, unsigned flags);
cudaError_t destroy_event(cudaEvent_t event);
cudaError_t record_event(cudaEvent_t event, cudaStream_t stream);
cudaError_t synchronize_event(cudaEvent_t event);
cudaError_t query_event(cudaEvent_t event);
cudaError_t elapsed_time(float* milliseconds, cudaEvent_t from, cudaEvent_t to);

}  // namespace fake_cuda

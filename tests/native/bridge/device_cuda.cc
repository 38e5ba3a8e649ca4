#include <cuda_runtime_api.h>

#include "bridge/device.h"
#include "cuda/check.h"

namespace gluon_syncbn::bridge {

using cuda::check;
using cuda::OnDevice;

void* native_stream(const cuda::Stream& stream) { return cuda::native(stream); }

std::int64_t cache_bytes(int ordinal) {
  int bytes = 0;
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, ordinal), "cudaDeviceGetAttribute",
        ordinal);
  return bytes;
}

struct Timer::Impl {
  int ordinal = 0;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;

  void record(cudaEvent_t event, const cuda::Stream& stream) const {
    const OnDevice on_device(ordinal);
    check(cudaEventRecord(event, cuda::native(stream)), "cudaEventRecord", ordinal);
  }
};

Timer::Timer(int ordinal) : impl_(std::make_unique<Impl>()) {
  const OnDevice on_device(ordinal);
  impl_->ordinal = ordinal;
  check(cudaEventCreate(&impl_->begin), "cudaEventCreate", ordinal);
  check(cudaEventCreate(&impl_->end), "cudaEventCreate", ordinal);
}
Timer::~Timer() = default;  // the process ends, and the events with it

void Timer::begin(cuda::Stream* stream) { impl_->record(impl_->begin, *stream); }
void Timer::end(cuda::Stream* stream) { impl_->record(impl_->end, *stream); }

bool Timer::has_begun() const {
  const OnDevice on_device(impl_->ordinal);
  const cudaError_t status = cudaEventQuery(impl_->begin);
  if (status != cudaErrorNotReady) check(status, "cudaEventQuery", impl_->ordinal);
  return status == cudaSuccess;
}

double Timer::seconds() const {
  const OnDevice on_device(impl_->ordinal);
  check(cudaEventSynchronize(impl_->end), "timed work", impl_->ordinal);
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, impl_->begin, impl_->end), "cudaEventElapsedTime",
        impl_->ordinal);
  return milliseconds / 1e3;
}

}  // namespace gluon_syncbn::bridge

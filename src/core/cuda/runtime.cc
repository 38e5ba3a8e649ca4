#include "core/cuda/runtime.h"

#include <cuda_runtime_api.h>

#include <sstream>

#include "core/cuda/check.h"
#include "core/error.h"

namespace gluon_syncbn::cuda {

void check(cudaError_t status, const std::string& what, int ordinal) {
  if (status == cudaSuccess) return;
  throw Error("CUDA: " + what + " on gpu(" + std::to_string(ordinal) +
              ") failed: " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")");
}

OnDevice::OnDevice(int ordinal) {
  check(cudaGetDevice(&before_), "cudaGetDevice", ordinal);
  if (before_ != ordinal) check(cudaSetDevice(ordinal), "cudaSetDevice", ordinal);
}
OnDevice::~OnDevice() { cudaSetDevice(before_); }

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // which is kept for whoever asks next
  return 0;
}

std::string describe_devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();
    return std::string("none: ") + cudaGetErrorString(status);
  }
  std::ostringstream text;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties", i);
    text << (i ? ", " : "") << properties.name << " (sm_" << properties.major << properties.minor
         << ")";
  }
  return count ? text.str() : "none";
}

bool enable_reading(int reader, int owner) {
  int possible = 0;
  check(cudaDeviceCanAccessPeer(&possible, reader, owner), "cudaDeviceCanAccessPeer", reader);
  if (!possible) return false;
  const OnDevice on_device(reader);
  const cudaError_t status = cudaDeviceEnablePeerAccess(owner, 0);
  if (status == cudaSuccess) return true;
  cudaGetLastError();
  // Any other reason is one not to read there: too many peers, or a machine that promises too much.
  return status == cudaErrorPeerAccessAlreadyEnabled;
}

struct Event::Impl {
  int ordinal = 0;
  cudaEvent_t event = nullptr;
};

Event::Event(int ordinal) : impl_(std::make_unique<Impl>()) {
  const OnDevice on_device(ordinal);
  impl_->ordinal = ordinal;
  check(cudaEventCreateWithFlags(&impl_->event, cudaEventDisableTiming), "cudaEventCreate",
        ordinal);
}
Event::~Event() { cudaEventDestroy(impl_->event); }

void Event::record(Stream* stream) {
  const OnDevice on_device(impl_->ordinal);
  check(cudaEventRecord(impl_->event, native(*stream)), "cudaEventRecord", impl_->ordinal);
}
void Event::synchronize() {
  check(cudaEventSynchronize(impl_->event), "earlier work", impl_->ordinal);
}

struct Stream::Impl {
  cudaStream_t stream = nullptr;
};

cudaStream_t native(const Stream& stream) { return stream.impl().stream; }

Stream::Stream(int ordinal) : ordinal_(ordinal), impl_(std::make_unique<Impl>()) {
  const OnDevice on_device(ordinal);
  check(cudaStreamCreateWithFlags(&impl_->stream, cudaStreamNonBlocking), "cudaStreamCreate",
        ordinal);
}
Stream::~Stream() { cudaStreamDestroy(impl_->stream); }

void Stream::wait(const Event& event) {
  const OnDevice on_device(ordinal_);
  check(cudaStreamWaitEvent(impl_->stream, event.impl().event, 0), "cudaStreamWaitEvent", ordinal_);
}
void Stream::zero(void* begin, std::size_t bytes) {
  const OnDevice on_device(ordinal_);
  check(cudaMemsetAsync(begin, 0, bytes, impl_->stream), "cudaMemsetAsync", ordinal_);
}
void Stream::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const OnDevice on_device(ordinal_);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, impl_->stream), "cudaMemcpyAsync",
        ordinal_);
}

Memory::Memory(Place place, int ordinal, std::size_t bytes)
    : place_(place), ordinal_(ordinal), bytes_(bytes) {
  const OnDevice on_device(ordinal);
  const std::string what = "allocation of " + std::to_string(bytes) + " bytes";
  if (place == Place::kDevice) {
    check(cudaMalloc(&data_, bytes), what, ordinal);
  } else {
    // Under unified addressing, which all 64-bit systems have, one address serves all GPUs.
    check(cudaHostAlloc(&data_, bytes, cudaHostAllocPortable | cudaHostAllocMapped), what, ordinal);
  }
}
Memory::~Memory() {
  // Fails at the end of the process, when the driver is gone and the memory with it.
  if (place_ == Place::kDevice) {
    cudaFree(data_);
  } else {
    cudaFreeHost(data_);
  }
}

}  // namespace gluon_syncbn::cuda

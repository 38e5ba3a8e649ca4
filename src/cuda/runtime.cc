#include "cuda/runtime.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <sstream>

#include "common/error.h"
#include "cuda/check.h"
#include "cuda/thread_context.h"

namespace gluon_syncbn::cuda {
namespace {

/// The primary context of each GPU, which this library shares with MXNet; null if it is not known
/// yet.
std::atomic<void*>& context_of(int ordinal) {
  constexpr std::size_t kMostGpus = 64;
  static std::array<std::atomic<void*>, kMostGpus> contexts{};
  return contexts.at(static_cast<std::size_t>(ordinal));
}

/// For destructors. At the end of the process the driver may have released everything before.
template <class Release>
void release_on(int ordinal, const Release& release) noexcept {
  try {
    const OnDevice on_device(ordinal);
    if (release() != cudaSuccess) cudaGetLastError();
  } catch (const Error&) {
  }
}

/// Returns "; ... of ... bytes are free" of the selected GPU, for a message.
std::string free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
    cudaGetLastError();
    return "";
  }
  return "; " + std::to_string(free) + " of " + std::to_string(total) + " bytes are free";
}

}  // namespace

OnDevice::OnDevice(int ordinal) : before_(thread_context()) {
  void* const context = context_of(ordinal);
  if (before_ && before_ == context) return;
  changed_ = true;
  // This is cudaSetDevice for a context that exists. Before CUDA 12, cudaSetDevice leaves the
  // thread without a context until a call needs one. Each OnDevice in this scope would then call it
  // again.
  if (context && set_thread_context(context)) return;
  const cudaError_t status = cudaSetDevice(ordinal);
  if (status != cudaSuccess) set_thread_context(before_);
  check(status, "cudaSetDevice", ordinal);
}
OnDevice::~OnDevice() {
  if (changed_) set_thread_context(before_);
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::string describe_devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();
    const bool may_be_forked = status == cudaErrorInitializationError;
    return std::string("none: ") + cudaGetErrorString(status) +
           (may_be_forked ? " (CUDA serves no process that was forked after it had been called)"
                          : "");
  }
  std::ostringstream text;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    const cudaError_t known = cudaGetDeviceProperties(&properties, i);
    text << (i ? ", " : "");
    if (known == cudaSuccess) {
      text << properties.name << " (sm_" << properties.major << properties.minor << ")";
    } else {
      cudaGetLastError();
      text << "one that does not answer (" << cudaGetErrorString(known) << ")";
    }
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
  // Any other error means no access: too many peers, or a machine that promises too much.
  return status == cudaErrorPeerAccessAlreadyEnabled;
}

Event::Event(int ordinal) : ordinal_(ordinal) {
  const OnDevice on_device(ordinal);
  check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate", ordinal);
}
Event::~Event() {
  release_on(ordinal_, [this] { return cudaEventDestroy(event_); });
}

void Event::record(Stream* stream) {
  const OnDevice on_device(ordinal_);
  check(cudaEventRecord(event_, stream->handle()), "cudaEventRecord", ordinal_);
}
bool Event::is_reached() const {
  cudaError_t status = cudaEventQuery(event_);
  const bool is_error = status != cudaSuccess && status != cudaErrorNotReady;
  if (is_error && thread_context() != context_of(ordinal_)) {
    // It may be an error of the selected GPU.
    const OnDevice on_device(ordinal_);
    status = cudaEventQuery(event_);
  }
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(status, "earlier work", ordinal_);
  return true;
}

Stream::Stream(int ordinal) : ordinal_(ordinal) {
  const OnDevice on_device(ordinal);
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaStreamCreate", ordinal);
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "cudaStreamCreate",
        ordinal);
  // Before CUDA 12 the thread has no context until a call like cudaStreamCreate needs one.
  context_of(ordinal) = thread_context();
}
Stream::~Stream() {
  release_on(ordinal_, [this] { return cudaStreamDestroy(stream_); });
}

void Stream::synchronize() {
  const OnDevice on_device(ordinal_);
  check(cudaStreamSynchronize(stream_), "earlier work", ordinal_);
}
void Stream::fill(void* begin, int byte, std::size_t bytes) {
  if (bytes == 0) return;
  const OnDevice on_device(ordinal_);
  check(cudaMemsetAsync(begin, byte, bytes, stream_), "cudaMemsetAsync", ordinal_);
}
void Stream::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const OnDevice on_device(ordinal_);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync", ordinal_);
}

Memory::Memory(Place place, int ordinal, std::size_t bytes)
    : place_(place), ordinal_(ordinal), bytes_(bytes) {
  const OnDevice on_device(ordinal);
  // All 64-bit systems have unified addressing, so one address serves all GPUs.
  const cudaError_t status =
      place == Place::kDevice
          ? cudaMalloc(&data_, bytes)
          : cudaHostAlloc(&data_, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  if (status == cudaSuccess) return;
  const std::string what = "allocation of " + std::to_string(bytes) + " bytes" +
                           (place == Place::kDevice ? "" : " of pinned host memory");
  try {
    check(status, what, ordinal);
  } catch (const Error& error) {
    if (status != cudaErrorMemoryAllocation) throw;
    throw OutOfMemory(error.what() + (place == Place::kDevice ? free_bytes() : ""));
  }
}
Memory::~Memory() {
  if (lent_) return;
  release_on(ordinal_,
             [this] { return place_ == Place::kDevice ? cudaFree(data_) : cudaFreeHost(data_); });
}

}  // namespace gluon_syncbn::cuda

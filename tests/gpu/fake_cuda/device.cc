#include "device.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "context.h"
#include "control.h"

namespace fake_cuda {
namespace {

constexpr int kMostDevices = 64;

}  // namespace

bool exists(int ordinal) {
  return ordinal >= 0 && ordinal < kMostDevices && ordinal < settings().devices;
}
Device& device(int ordinal) {
  static auto& all = *[] {
    auto* made = new std::deque<Device>;
    for (int i = 0; i < kMostDevices; ++i) made->emplace_back(i);
    return made;
  }();
  return all.at(static_cast<std::size_t>(ordinal));
}

void Device::break_with(cudaError_t error) {
  cudaError_t none = cudaSuccess;
  error_.compare_exchange_strong(none, error);
}

cudaError_t Device::make_context() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (has_context_) return cudaSuccess;
  const cudaError_t fault = fault_at("context", ordinal_);
  has_context_ = fault == cudaSuccess;
  return fault;
}
bool Device::has_context() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return has_context_;
}

cudaError_t Device::enable_peer(int peer) {
  if (peer == ordinal_) return cudaErrorPeerAccessUnsupported;
  // The driver needs the contexts of both.
  const cudaError_t status = device(peer).make_context();
  if (status != cudaSuccess) return status;
  const std::lock_guard<std::mutex> lock(mutex_);
  return peers_.insert(peer).second ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
}
bool Device::reaches(int peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return peer == ordinal_ || peers_.count(peer);
}

std::size_t Device::all_memory() { return static_cast<std::size_t>(settings().memory) << 20; }
cudaError_t Device::take_memory(std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > all_memory() || used_ > all_memory() - bytes) return cudaErrorMemoryAllocation;
  used_ += bytes;
  return cudaSuccess;
}
void Device::give_back_memory(std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  used_ -= bytes;
}
std::size_t Device::free_memory() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return all_memory() - std::min(used_, all_memory());
}

cudaStream_t Device::new_stream() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto number = static_cast<std::size_t>(streams_so_far_++ % settings().queues);
  while (hardware_.size() <= number) hardware_.emplace_back();
  return *streams_.insert(new CUstream_st(this, &hardware_[number])).first;
}
void Device::remove_stream(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.erase(stream);
  delete stream;
}

void Device::synchronize() {
  std::vector<PointPtr> points;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const cudaStream_t stream : streams_) points.push_back(stream->point());
  }
  for (const PointPtr& point : points) point->wait();
}

}  // namespace fake_cuda

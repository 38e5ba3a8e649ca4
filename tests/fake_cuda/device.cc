#include "device.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "faults.h"
#include "settings.h"

namespace fake_cuda {
namespace {

constexpr int kMostDevices = 64;

// Never destroyed, as streams may run until the process is gone.
std::vector<std::unique_ptr<Device>>& devices() {
  static auto& all = *[] {
    auto* made = new std::vector<std::unique_ptr<Device>>;
    for (int i = 0; i < kMostDevices; ++i) made->push_back(std::make_unique<Device>(i));
    return made;
  }();
  return all;
}

}  // namespace

bool exists(int ordinal) {
  return ordinal >= 0 && ordinal < kMostDevices && ordinal < settings().devices;
}
Device& device(int ordinal) { return *devices().at(static_cast<std::size_t>(ordinal)); }
std::vector<Device*> all_devices() {
  std::vector<Device*> all;
  for (const auto& each : devices()) all.push_back(each.get());
  return all;
}

int& current_device() {
  static thread_local int current = 0;
  return current;
}

bool& works_in_context() {
  static thread_local bool works = false;
  return works;
}

Device::Device(int ordinal) : ordinal_(ordinal) {}

void Device::break_with(cudaError_t error) {
  cudaError_t none = cudaSuccess;
  error_.compare_exchange_strong(none, error);
}

void Device::reset() {
  const std::lock_guard<std::mutex> lock(mutex_);
  error_ = cudaSuccess;
  has_context_ = false;
  peers_.clear();
  used_ = 0;
}

cudaError_t Device::make_context() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (has_context_) return cudaSuccess;
  const cudaError_t fault = fault_at("context", ordinal_);
  if (fault != cudaSuccess) return fault;
  has_context_ = true;
  return cudaSuccess;
}
bool Device::has_context() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return has_context_;
}

bool Device::can_reach(int from, int to) { return from != to && settings().peers != 0; }
cudaError_t Device::enable_peer(int peer) {
  if (!can_reach(ordinal_, peer)) return cudaErrorPeerAccessUnsupported;
  // The driver needs the contexts of both.
  const cudaError_t status = device(peer).make_context();
  if (status != cudaSuccess) return status;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (peers_.count(peer)) return cudaErrorPeerAccessAlreadyEnabled;
  peers_.insert(peer);
  return cudaSuccess;
}
cudaError_t Device::disable_peer(int peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return peers_.erase(peer) ? cudaSuccess : cudaErrorPeerAccessNotEnabled;
}
bool Device::reaches(int peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return peer == ordinal_ || peers_.count(peer);
}

cudaError_t Device::take_memory(std::size_t bytes) {
  const std::size_t all = static_cast<std::size_t>(settings().memory) << 20;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > all || used_ > all - bytes) return cudaErrorMemoryAllocation;
  used_ += bytes;
  return cudaSuccess;
}
void Device::give_back_memory(std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  used_ -= std::min(used_, bytes);  // less, where a reset came between
}
std::size_t Device::free_memory() {
  const std::size_t all = static_cast<std::size_t>(settings().memory) << 20;
  const std::lock_guard<std::mutex> lock(mutex_);
  return all < used_ ? 0 : all - used_;
}

StreamPtr Device::new_stream(bool waits_for_legacy) {
  const auto stream = std::make_shared<Stream>(this, waits_for_legacy);
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.insert(stream);
  return stream;
}
void Device::remove_stream(const StreamPtr& stream) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    streams_.erase(stream);
  }
  stream->destroy();
}

void Device::put_on_legacy(Work work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!legacy_) legacy_ = std::make_shared<Stream>(this, false);
  for (const auto& each : streams_) {
    if (each->waits_for_legacy()) legacy_->wait_for(each->point());
  }
  legacy_->put(std::move(work));
  const PointPtr done = legacy_->point();
  for (const auto& each : streams_) {
    if (each->waits_for_legacy()) each->wait_for(done);
  }
}
PointPtr Device::point_of_legacy() {
  auto point = std::make_shared<Point>();
  put_on_legacy({nullptr, [point] { point->reach(); }});
  return point;
}

void Device::synchronize() {
  std::vector<PointPtr> points;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& each : streams_) points.push_back(each->point());
    if (legacy_) points.push_back(legacy_->point());
  }
  for (const auto& point : points) point->wait();
}

}  // namespace fake_cuda

#include "stream.h"

#include <atomic>
#include <deque>
#include <exception>
#include <thread>
#include <utility>

#include "control.h"
#include "device.h"

namespace fake_cuda {
namespace {

thread_local bool is_stream_thread = false;
std::atomic<unsigned> streams_so_far{0};

void run_work(const Work& work, Device* device, std::minstd_rand* random) {
  const long longest = settings().delay;
  if (longest > 0) {
    const auto delay = static_cast<long>((*random)()) % longest;
    std::this_thread::sleep_for(std::chrono::microseconds(delay));
  }
  if (work.kind) {
    if (device->error() != cudaSuccess) return;
    const cudaError_t fault = fault_at(work.kind, device->ordinal());
    if (fault != cudaSuccess) return device->break_with(fault);
  }
  try {
    work.run();
  } catch (const std::exception& error) {
    die(error.what());
  }
}

}  // namespace

bool in_stream_thread() { return is_stream_thread; }

void Point::reach() {
  const std::lock_guard<std::mutex> lock(mutex_);
  reached_ = true;
  when_ = std::chrono::steady_clock::now();
  changed_.notify_all();
}
void Point::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return reached_; });
}
bool Point::reached() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return reached_;
}
Point::Time Point::when() {
  wait();
  return when_;
}

}  // namespace fake_cuda

using fake_cuda::Device;
using fake_cuda::PointPtr;
using fake_cuda::Work;

struct CUstream_st::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> work;
  bool captures = false;
  bool begun = false;
  bool ends = false;
};

CUstream_st::CUstream_st(Device* device)
    : device_(device), seed_(++fake_cuda::streams_so_far), queue_(std::make_shared<Queue>()) {}

CUstream_st::~CUstream_st() {
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  queue_->ends = true;
  queue_->changed.notify_all();
}

void CUstream_st::put(Work work) {
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  if (queue_->captures) return;
  queue_->work.push_back(std::move(work));
  if (!queue_->begun) {
    queue_->begun = true;
    // Detached: as with CUDA, the process may end while a GPU works.
    std::thread(run, queue_, device_, seed_).detach();
  }
  queue_->changed.notify_all();
}

PointPtr CUstream_st::point() {
  auto point = std::make_shared<fake_cuda::Point>();
  put({nullptr, [point] { point->reach(); }});
  return point;
}

void CUstream_st::capture(bool captures) {
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  queue_->captures = captures;
}
bool CUstream_st::is_capturing() {
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  return queue_->captures;
}

void CUstream_st::run(const std::shared_ptr<Queue>& queue, Device* device, unsigned seed) {
  fake_cuda::is_stream_thread = true;
  std::minstd_rand random(seed);
  std::unique_lock<std::mutex> lock(queue->mutex);
  for (;;) {
    queue->changed.wait(lock, [&] { return queue->ends || !queue->work.empty(); });
    if (queue->work.empty()) return;
    const Work work = std::move(queue->work.front());
    queue->work.pop_front();
    lock.unlock();
    fake_cuda::run_work(work, device, &random);
    lock.lock();
  }
}

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

void run_work(const Work& work, Device* device, HardwareQueue* hardware, std::minstd_rand* random) {
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::microseconds(20)); };
  while (settings().lost == device->ordinal()) pause();
  while (work.is_queued && hardware->begun.load(std::memory_order_relaxed) != work.turn) pause();
  // A kernel that runs keeps no other stream waiting.
  if (work.is_queued && work.kind) hardware->begun.fetch_add(1, std::memory_order_relaxed);
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
  if (work.is_queued && !work.kind) hardware->begun.fetch_add(1, std::memory_order_relaxed);
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
  bool begun = false;
  bool ends = false;
};

CUstream_st::CUstream_st(Device* device, fake_cuda::HardwareQueue* hardware)
    : device_(device),
      hardware_(hardware),
      seed_(++fake_cuda::streams_so_far),
      queue_(std::make_shared<Queue>()) {}

CUstream_st::~CUstream_st() {
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  queue_->ends = true;
  queue_->changed.notify_all();
}

void CUstream_st::put(Work work) {
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  if (work.is_queued) work.turn = hardware_->issued.fetch_add(1, std::memory_order_relaxed);
  queue_->work.push_back(std::move(work));
  if (!queue_->begun) {
    queue_->begun = true;
    // Detached: as with CUDA, the process may end while a GPU works.
    std::thread(run, queue_, device_, hardware_, seed_).detach();
  }
  queue_->changed.notify_all();
}

PointPtr CUstream_st::point() {
  auto point = std::make_shared<fake_cuda::Point>();
  put({nullptr, [point] { point->reach(); }, false});
  return point;
}

void CUstream_st::run(const std::shared_ptr<Queue>& queue, Device* device,
                      fake_cuda::HardwareQueue* hardware, unsigned seed) {
  fake_cuda::is_stream_thread = true;
  std::minstd_rand random(seed);
  std::unique_lock<std::mutex> lock(queue->mutex);
  for (;;) {
    queue->changed.wait(lock, [&] { return queue->ends || !queue->work.empty(); });
    if (queue->work.empty()) return;
    const Work work = std::move(queue->work.front());
    queue->work.pop_front();
    lock.unlock();
    fake_cuda::run_work(work, device, hardware, &random);
    lock.lock();
  }
}

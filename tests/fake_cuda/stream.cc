#include "stream.h"

#include <atomic>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "counters.h"
#include "device.h"
#include "die.h"
#include "faults.h"
#include "settings.h"

namespace fake_cuda {
namespace {

thread_local bool is_stream_thread = false;
std::atomic<unsigned> streams_so_far{0};

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

struct Stream::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> work;
  std::optional<std::vector<Work>> captured;
  bool begun = false;
  bool ends = false;
};

Stream::Stream(Device* device, bool waits_for_legacy)
    : device_(device),
      waits_for_legacy_(waits_for_legacy),
      seed_(1 + ++streams_so_far + 1000 * static_cast<unsigned>(settings().seed)),
      queue_(std::make_shared<Queue>()) {}

void Stream::put(Work work) {
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  if (queue_->captured) {
    queue_->captured->push_back(std::move(work));
    return;
  }
  queue_->work.push_back(std::move(work));
  if (!queue_->begun) {
    queue_->begun = true;
    // Detached: as with CUDA, the process may end while a GPU works.
    std::thread(run, queue_, device_, seed_).detach();
  }
  queue_->changed.notify_all();
}

PointPtr Stream::point() {
  auto point = std::make_shared<Point>();
  put({nullptr, [point] { point->reach(); }});
  return point;
}

void Stream::wait_for(PointPtr point) {
  put({nullptr, [point = std::move(point)] { point->wait(); }});
}

void Stream::destroy() {
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  queue_->ends = true;
  queue_->changed.notify_all();
}

void Stream::begin_capture() {
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  queue_->captured.emplace();
}
bool Stream::is_capturing() {
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  return queue_->captured.has_value();
}
std::vector<Work> Stream::end_capture() {
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  std::vector<Work> captured;
  if (queue_->captured) captured = std::move(*queue_->captured);
  queue_->captured.reset();
  return captured;
}

void Stream::run(const std::shared_ptr<Queue>& queue, Device* device, unsigned seed) {
  is_stream_thread = true;
  std::minstd_rand random(seed);
  std::unique_lock<std::mutex> lock(queue->mutex);
  for (;;) {
    queue->changed.wait(lock, [&] { return queue->ends || !queue->work.empty(); });
    if (queue->work.empty()) return;
    const Work work = std::move(queue->work.front());
    queue->work.pop_front();
    lock.unlock();
    run_work(work, device, &random);
    lock.lock();
  }
}

void Stream::run_work(const Work& work, Device* device, std::minstd_rand* random) {
  const long longest = settings().delay;
  if (longest > 0) {
    const auto delay = static_cast<long>((*random)()) % longest;
    std::this_thread::sleep_for(std::chrono::microseconds(delay));
  }
  if (work.kind) {
    if (device->error() != cudaSuccess) return;
    const cudaError_t fault = fault_at(work.kind, device->ordinal());
    if (fault != cudaSuccess) return device->break_with(fault);
    count(work.kind, device->ordinal());
  }
  try {
    work.run();
  } catch (const std::exception& error) {
    die(error.what());
  }
}

}  // namespace fake_cuda

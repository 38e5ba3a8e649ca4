#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>

namespace fake_cuda {

class Device;

/// A point in the work of a stream.
class Point {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void reach();
  void wait();
  bool reached();
  Time when();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  Time when_;
};
using PointPtr = std::shared_ptr<Point>;

/// One operation of a stream. Without a kind it is no work of the GPU, only order between streams,
/// which is kept even where the device is broken.
struct Work {
  const char* kind = nullptr;
  std::function<void()> run;
  bool is_queued = true;  ///< in the hardware queue
  long turn = 0;          ///< there
};

/// A hardware queue begins operations in the order of the calls. Until one has begun, none after
/// it begins, whatever its stream: kernels of several streams run beside each other, but an
/// operation that waits for an earlier one of its stream, or for an event, keeps all others
/// waiting. The atomics order no memory, so that the thread sanitizer still sees races.
struct HardwareQueue {
  std::atomic<long> issued{0};
  std::atomic<long> begun{0};
};

/// Whether the calling thread is that of a stream, where CUDA allows no calls.
bool in_stream_thread();

}  // namespace fake_cuda

/// A queue whose thread begins with the first operation. What is in it still runs when the stream
/// is destroyed.
struct CUstream_st {
  CUstream_st(fake_cuda::Device* device, fake_cuda::HardwareQueue* hardware);
  ~CUstream_st();
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  fake_cuda::Device* device() const { return device_; }

  void put(fake_cuda::Work work);
  /// A point after all work so far.
  fake_cuda::PointPtr point();

 private:
  struct Queue;
  static void run(const std::shared_ptr<Queue>& queue, fake_cuda::Device* device,
                  fake_cuda::HardwareQueue* hardware, unsigned seed);

  fake_cuda::Device* const device_;
  fake_cuda::HardwareQueue* const hardware_;
  const unsigned seed_;
  const std::shared_ptr<Queue> queue_;
};

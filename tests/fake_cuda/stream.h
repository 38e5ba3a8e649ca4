#pragma once

#include <cuda_runtime_api.h>

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
};

/// Whether the calling thread is that of a stream, where CUDA allows no calls.
bool in_stream_thread();

}  // namespace fake_cuda

/// A queue whose thread begins with the first operation. What is in it still runs when the stream
/// is destroyed.
struct CUstream_st {
  explicit CUstream_st(fake_cuda::Device* device);
  ~CUstream_st();
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  fake_cuda::Device* device() const { return device_; }

  void put(fake_cuda::Work work);
  /// A point behind all work so far.
  fake_cuda::PointPtr point();

  /// What is put while the stream is captured does not run: nobody launches a graph.
  void capture(bool captures);
  bool is_capturing();

 private:
  struct Queue;
  static void run(const std::shared_ptr<Queue>& queue, fake_cuda::Device* device, unsigned seed);

  fake_cuda::Device* const device_;
  const unsigned seed_;
  const std::shared_ptr<Queue> queue_;
};

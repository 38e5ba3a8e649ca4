#ifndef GLUON_SYNCBN_TESTS_FAKE_CUDA_STREAM_H_
#define GLUON_SYNCBN_TESTS_FAKE_CUDA_STREAM_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

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

/// A queue whose thread begins with the first operation, and ends when nobody holds the stream any
/// more and all is done.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(Device* device, bool waits_for_legacy);

  Device* device() const { return device_; }
  bool waits_for_legacy() const { return waits_for_legacy_; }

  void put(Work work);
  /// A point behind all work so far.
  PointPtr point();
  void wait_for(PointPtr point);
  /// The handle is gone: what is in the queue still runs.
  void destroy();

  void begin_capture();
  bool is_capturing();
  std::vector<Work> end_capture();

 private:
  struct Queue;
  static void run(const std::shared_ptr<Queue>& queue, Device* device, unsigned seed);
  static void run_work(const Work& work, Device* device, std::minstd_rand* random);

  Device* const device_;
  const bool waits_for_legacy_;
  const unsigned seed_;
  const std::shared_ptr<Queue> queue_;
};
using StreamPtr = std::shared_ptr<Stream>;

/// Whether the calling thread is that of a stream, where CUDA allows no calls.
bool in_stream_thread();

}  // namespace fake_cuda

#endif  // GLUON_SYNCBN_TESTS_FAKE_CUDA_STREAM_H_

// core/cuda/runtime.h without a GPU: a stream is a thread that works off a queue, and kernels run
// there in lockstep. Streams are as independent of each other as on a GPU, so that the thread
// sanitizer finds work that should have waited for another stream.

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "common/dtype.h"
#include "common/error.h"
#include "cuda/kernels/instances.h"
#include "cuda/runtime.h"
#include "emulation/emulation.h"
#include "emulation/lockstep.h"

namespace gluon_syncbn::tests {

namespace {

int devices_of_environment() {
  const char* number = std::getenv("GLUON_SYNCBN_EMULATED_GPUS");
  return number ? std::atoi(number) : 8;
}

}  // namespace

std::atomic<int> emulated_devices{devices_of_environment()};
std::atomic<bool> emulated_peer_access{true};
std::atomic<long> emulated_meetings{0};
std::atomic<long> emulated_copies{0};
std::atomic<long> emulated_allocations{0};
std::atomic<long> emulated_host_allocations{0};
std::atomic<long> emulated_launches{0};
std::atomic<long> emulated_releases{0};
std::atomic<int> emulated_refusals{0};
std::atomic<int> emulated_event_refusals{0};
std::atomic<bool> emulated_capture{false};
std::atomic<bool> emulated_fault{false};
std::atomic<bool> emulated_copy_fault{false};

}  // namespace gluon_syncbn::tests

namespace gluon_syncbn::cuda {
namespace {

/// What Event::record leaves: one point in the work of one stream.
class Point {
 public:
  void reach(const std::string& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    error_ = error;
    reached_ = true;
    changed_.notify_all();
  }
  std::string wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return reached_; });
    return error_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  std::string error_;
};

/// Whose memory is where, and who can read it.
class Reach {
 public:
  static Reach& instance() {
    static Reach& reach = *new Reach();
    return reach;
  }

  void add(const void* begin, std::size_t bytes, int owner) {
    const std::lock_guard<std::mutex> lock(mutex_);
    memories_[reinterpret_cast<std::uintptr_t>(begin)] = {bytes, owner};
  }
  void remove(const void* begin) {
    const std::lock_guard<std::mutex> lock(mutex_);
    memories_.erase(reinterpret_cast<std::uintptr_t>(begin));
  }
  void enable(int reader, int owner) {
    const std::lock_guard<std::mutex> lock(mutex_);
    enabled_.insert({reader, owner});
  }

  /// What is wrong with a kernel on this GPU whose arguments are these; "" where nothing is.
  std::string fault(const void* arguments, std::size_t bytes, int reader) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::size_t at = 0; at + sizeof(std::uintptr_t) <= bytes; at += sizeof(std::uintptr_t)) {
      std::uintptr_t word = 0;
      std::memcpy(&word, static_cast<const char*>(arguments) + at, sizeof word);
      auto after = memories_.upper_bound(word);
      if (after == memories_.begin()) continue;
      const auto& [begin, memory] = *--after;
      const int owner = memory.second;
      if (word - begin < memory.first && owner != reader && !enabled_.count({reader, owner})) {
        return "CUDA: an emulated kernel on gpu(" + std::to_string(reader) +
               ") cannot reach memory of gpu(" + std::to_string(owner) + ")";
      }
    }
    return "";
  }

 private:
  std::mutex mutex_;
  std::map<std::uintptr_t, std::pair<std::size_t, int>> memories_;  // bytes and GPU, by address
  std::set<std::pair<int, int>> enabled_;
};

}  // namespace

int device_count() { return tests::emulated_devices; }
void forget_last_error() {}
std::string describe_devices() { return std::to_string(device_count()) + " emulated"; }
OnDevice::OnDevice(int) : before_(nullptr) {}
OnDevice::~OnDevice() = default;
bool enable_reading(int reader, int owner) {
  ++tests::emulated_meetings;
  if (!tests::emulated_peer_access) return false;
  Reach::instance().enable(reader, owner);
  return true;
}

struct Stream::Impl {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool ends = false;
  std::string error;  // used by the thread alone
  std::thread thread{[this] { run(); }};

  void put(std::function<void()> task) {
    const std::lock_guard<std::mutex> lock(mutex);
    work.push_back(std::move(task));
    changed.notify_all();
  }
  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ends || !work.empty(); });
      if (work.empty()) return;
      auto task = std::move(work.front());
      work.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }
};

struct Event::Impl {
  std::mutex mutex;
  std::shared_ptr<Point> last;

  std::shared_ptr<Point> point() {
    const std::lock_guard<std::mutex> lock(mutex);
    return last;
  }
};

Event::Event(int) : impl_(std::make_unique<Impl>()) {
  if (tests::emulated_event_refusals == 0) return;
  --tests::emulated_event_refusals;
  throw Error("CUDA: an emulated event cannot be made");
}
Event::~Event() = default;
void Event::record(Stream* stream) {
  const auto point = std::make_shared<Point>();
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->last = point;
  }
  Stream::Impl* impl = &stream->impl();
  impl->put([point, impl] { point->reach(impl->error); });
}
void Event::synchronize() {
  const auto point = impl_->point();
  if (!point) return;
  const std::string error = point->wait();
  if (!error.empty()) throw Error(error);
}

Stream::Stream(int ordinal) : ordinal_(ordinal), impl_(std::make_unique<Impl>()) {
  if (ordinal < 0 || ordinal >= device_count())
    throw Error("no emulated GPU " + std::to_string(ordinal));
}
Stream::~Stream() {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->ends = true;
    impl_->changed.notify_all();
  }
  impl_->thread.join();
}
void Stream::wait(const Event& event) {
  const auto point = event.impl().point();
  if (point) {
    impl_->put([point] { point->wait(); });
  }
}
void Stream::synchronize() {
  const auto point = std::make_shared<Point>();
  impl_->put([point, impl = impl_.get()] { point->reach(impl->error); });
  const std::string error = point->wait();
  if (!error.empty()) throw Error(error);
}
bool Stream::is_capturing() const { return tests::emulated_capture; }
void Stream::zero(void* begin, std::size_t bytes) {
  ++tests::emulated_launches;
  impl_->put([begin, bytes] { std::memset(begin, 0, bytes); });
}
void Stream::copy(void* to, const void* from, std::size_t bytes) {
  ++tests::emulated_copies;
  Impl* impl = impl_.get();
  impl->put([to, from, bytes, impl] {
    if (tests::emulated_copy_fault.exchange(false)) impl->error = "CUDA: emulated fault in a copy";
    if (bytes > 0 && impl->error.empty()) std::memcpy(to, from, bytes);
  });
}

Memory::Memory(Place place, int ordinal, std::size_t bytes)
    : place_(place), ordinal_(ordinal), bytes_(bytes) {
  if (tests::emulated_refusals > 0) {
    --tests::emulated_refusals;
    throw OutOfMemory("CUDA: emulated allocation of " + std::to_string(bytes) + " bytes failed");
  }
  ++tests::emulated_allocations;
  if (place_ == Place::kHost) ++tests::emulated_host_allocations;
  data_ = ::operator new(bytes, std::align_val_t(256));
  std::memset(data_, 0xff, bytes);  // no number, as far as it matters
  if (place_ == Place::kDevice) Reach::instance().add(data_, bytes, ordinal_);
}
Memory::~Memory() {
  if (lent_) return;
  ++tests::emulated_releases;
  Reach::instance().remove(data_);
  ::operator delete(data_, std::align_val_t(256));
}

template <class Body>
void launch(const Body& body, std::int64_t blocks, Stream* stream) {
  if (blocks == 0) return;
  ++tests::emulated_launches;
  Stream::Impl* impl = &stream->impl();
  impl->put([body, blocks, impl, order = tests::order_of_kernels(),
             fault = Reach::instance().fault(&body, sizeof body, stream->ordinal())] {
    if (!fault.empty() && impl->error.empty()) impl->error = fault;
    if (tests::emulated_fault.exchange(false)) {
      impl->error = std::string("CUDA: emulated fault in kernel '") + Body::kName + "'";
    }
    if (impl->error.empty()) tests::run_in_lockstep(body, blocks, order);
  });
}

#define GLUON_SYNCBN_EMULATE(...) template void launch(const __VA_ARGS__&, std::int64_t, Stream*);
#define GLUON_SYNCBN_EMULATE_DATA(T) GLUON_SYNCBN_CUDA_DATA_BODIES(GLUON_SYNCBN_EMULATE, T)
GLUON_SYNCBN_FOR_EACH_DTYPE(GLUON_SYNCBN_EMULATE_DATA)
GLUON_SYNCBN_CUDA_CHANNEL_BODIES(GLUON_SYNCBN_EMULATE)
#undef GLUON_SYNCBN_EMULATE_DATA
#undef GLUON_SYNCBN_EMULATE

}  // namespace gluon_syncbn::cuda

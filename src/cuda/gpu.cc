#include "cuda/gpu.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "common/error.h"
#include "common/per_process.h"
#include "common/report.h"
#include "common/watchdog.h"
#include "cuda/kernel.h"
#include "cuda/kernels/per_channel.h"

namespace gluon_syncbn::cuda {
namespace {

struct OfContext {
  std::mutex mutex;
  std::unique_ptr<Gpu> gpu;
};
struct Gpus {
  std::mutex mutex;
  std::map<int, OfContext> of_contexts;
};

using Clock = std::chrono::steady_clock;
// A thread that sleeps takes longer to wake than many kernels take to end.
constexpr std::chrono::microseconds kWithoutSleep{100};

/// Lets a part of a wait since `begin` pass. The calls that end the wait take locks, of the driver
/// too, which the threads that launch kernels need meanwhile.
void pause(Clock::time_point begin) {
  const auto now = Clock::now();
  if (now - begin > kWithoutSleep) {
    constexpr Clock::duration kLongest = std::chrono::milliseconds(1);
    return std::this_thread::sleep_for(std::min((now - begin) / 32, kLongest));
  }
  while (Clock::now() < now + std::chrono::microseconds(3)) std::this_thread::yield();
}

int ordinal_of(int index) {
  const int count = device_count();
  const bool shared = std::getenv("GLUON_SYNCBN_SHARE_GPUS") != nullptr;
  if (count == 0 || index < 0 || (index >= count && !shared)) {
    throw Error("there is no gpu(" + std::to_string(index) +
                "); GPUs that CUDA finds: " + describe_devices());
  }
  return index % count;
}

/// Users set MXNET_ENABLE_GPU_P2P=0 where CUDA reports peer access that does not work.
bool peer_access_is_off() {
  const char* value = std::getenv("MXNET_ENABLE_GPU_P2P");
  return value && *value && std::atoi(value) == 0;
}

}  // namespace

bool wait_until_reached(const Event& event, double limit) {
  const auto begin = Clock::now();
  while (!event.is_reached()) {
    const std::chrono::duration<double> waited = Clock::now() - begin;
    if (limit > 0 && waited.count() > limit) return false;
    pause(begin);
  }
  return true;
}

Gpu& Gpu::of(int index) {
  Gpus& gpus = PerProcess<Gpus>::instance();
  std::unique_lock<std::mutex> lock(gpus.mutex);
  OfContext& context = gpus.of_contexts[index];
  lock.unlock();
  // To make a context takes long, so others do not wait for it.
  const std::lock_guard<std::mutex> lock_of_context(context.mutex);
  if (!context.gpu) context.gpu = std::make_unique<Gpu>(index, ordinal_of(index));
  return *context.gpu;
}

Gpu::Gpu(int index, int ordinal)
    : index_(index),
      ordinal_(ordinal),
      has_peer_access_(!peer_access_is_off()),
      messages_to_host_(!has_peer_access_),
      reading_(static_cast<std::size_t>(device_count())),
      stream_(ordinal),
      memories_(index, &stream_) {
  // try_reading() must not load its kernel (load_kernels() says why).
  if (has_peers()) Kernel::of<PerChannel<ReadNumbers>>().load(ordinal);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw Error("the thread that waits for gpu(" + std::to_string(index) +
                ") could not be started: " + error.what());
  }
}

Gpu::~Gpu() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

std::shared_ptr<Event> Gpu::event() {
  return events_.take([this] { return std::make_unique<Event>(ordinal_); });
}

Gpu::MessageMemory Gpu::message(std::size_t doubles) {
  return {memory(doubles), messages_to_host_ ? host_memory(doubles) : Pool<Memory>::Lease(),
          event()};
}

bool Gpu::reads(Gpu* owner) {
  if (owner == this) return true;
  if (!has_peer_access_) return false;
  if (owner->ordinal_ == ordinal_) return true;
  auto& reading = reading_.at(static_cast<std::size_t>(owner->ordinal_));
  if (reading == Reading::kNotTried) reading = try_reading(owner);
  if (reading != Reading::kHangs) return reading == Reading::kWorks;
  std::ostringstream text;
  text << "gpu(" << index_ << ") has waited " << Watchdog::instance().timeout()
       << " s for its first read of the memory of gpu(" << owner->index_
       << "): peer access between them does not work; set MXNET_ENABLE_GPU_P2P=0";
  throw Error(text.str());
}

Gpu::Reading Gpu::try_reading(Gpu* owner) {
  if (!enable_reading(ordinal_, owner->ordinal_)) return Reading::kFails;
  // The check has a stream of its own. If the kernel hangs, the streams of the contexts go on.
  struct Check {
    Stream stream;
    Event end;
    std::unique_ptr<Memory> there;
    Pool<Memory>::Lease here;
  };
  std::vector<double> numbers(1024);
  std::iota(numbers.begin(), numbers.end(), 1 + owner->ordinal_);
  const std::size_t bytes = numbers.size() * sizeof(double);
  const std::shared_ptr<Check> check(new Check{
      Stream(ordinal_), Event(ordinal_), owner->memories_.allocate(Memory::Place::kDevice, bytes),
      host_memory(numbers.size())});
  auto* read = static_cast<double*>(check->here->data());
  std::copy(numbers.begin(), numbers.end(), read);
  Stream writing(owner->ordinal_);
  writing.copy(check->there->data(), read, bytes);
  writing.synchronize();
  std::fill_n(read, numbers.size(), 0.0);
  const PerChannel<ReadNumbers> body{{static_cast<const double*>(check->there->data()), read},
                                     static_cast<std::int64_t>(numbers.size())};
  const OnDevice on_device(ordinal_);
  launch(body, body.blocks(), &check->stream);
  check->end.record(&check->stream);
  if (!wait_until_reached(check->end, Watchdog::instance().timeout())) {
    // To free its memory would wait for the kernel.
    const std::lock_guard<std::mutex> lock(mutex_);
    hanging_checks_.push_back(check);
    return Reading::kHangs;
  }
  if (std::equal(numbers.begin(), numbers.end(), read)) return Reading::kWorks;
  report("warning: gpu(" + std::to_string(index_) +
         ") reads wrong numbers from the memory of gpu(" + std::to_string(owner->index_) +
         "), though CUDA reports peer access. This library reads them from memory of the host "
         "now; set MXNET_ENABLE_GPU_P2P=0 for MXNet");
  return Reading::kFails;
}

void Gpu::wait_for(const Event& event) const {
  const double limit = Watchdog::instance().timeout();
  if (wait_until_reached(event, limit)) return;
  std::ostringstream text;
  text << "gpu(" << index_ << ") has not finished its sums in " << limit
       << " s: a kernel before them does not end, or the GPU is lost";
  throw Error(text.str());
}

void Gpu::post(std::function<void()> task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

bool Gpu::take_turn() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return tasks_.empty() && !std::exchange(is_taken_, true);
}
void Gpu::end_turn() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_taken_ = false;
  }
  wake_.notify_one();
}

void Gpu::when_done(Done done) {
  std::shared_ptr<Event> event;
  try {
    event = this->event();
    event->record(&stream_);
  } catch (const std::exception&) {
    // The thread then waits for the whole stream: kernels may use memory that `done` gives back.
    event = nullptr;
  }
  post([this, event = std::move(event), done = std::move(done)]() mutable {
    std::string error;
    try {
      if (event) {
        wait_until_reached(*event);
      } else {
        stream_.synchronize();
      }
    } catch (const std::exception& caught) {
      error = caught.what();
    }
    event.reset();
    done(error);
  });
}

void Gpu::run() {
  // Linux lets a thread sleep for up to 50 microseconds longer than it asks for, unless told
  // otherwise.
  prctl(PR_SET_TIMERSLACK, 1000UL);
  const auto select = [this](std::optional<OnDevice>* on_device) {
    try {
      on_device->emplace(ordinal_);
    } catch (const std::exception&) {
      // The task calls CUDA, gets the same error and reports it.
    }
  };
  std::optional<OnDevice> always;  // so that `on_device` below has nothing to change as a rule
  select(&always);
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      const auto begin = Clock::now();
      const auto has_turn = [this] { return !is_taken_ && (ends_ || !tasks_.empty()); };
      while (!has_turn() && Clock::now() - begin < kWithoutSleep) {
        lock.unlock();
        pause(begin);
        lock.lock();
      }
      wake_.wait(lock, has_turn);
      if (tasks_.empty()) return;
      is_taken_ = true;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    // The previous task may have completed a call of MXNet, which may select another GPU.
    std::optional<OnDevice> on_device;
    select(&on_device);
    task();
    end_turn();
  }
}

}  // namespace gluon_syncbn::cuda

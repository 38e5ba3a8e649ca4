#include "cuda/gpu.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "common/error.h"
#include "common/per_process.h"
#include "common/watchdog.h"

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
      has_peers_(device_count() > 1),
      stream_(ordinal),
      memories_(index, &stream_) {
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
      const auto may_go_on = [this] { return ends_ || !tasks_.empty(); };
      while (!may_go_on() && Clock::now() - begin < kWithoutSleep) {
        lock.unlock();
        pause(begin);
        lock.lock();
      }
      wake_.wait(lock, may_go_on);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    // The previous task may have completed a call of MXNet, which may select another GPU.
    std::optional<OnDevice> on_device;
    select(&on_device);
    task();
  }
}

}  // namespace gluon_syncbn::cuda

#include "cuda/gpu.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "common/error.h"
#include "common/per_process.h"
#include "common/processors.h"
#include "cuda/driver.h"

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

std::atomic<bool> are_shared{false};
std::atomic<int> contexts{0};

int ordinal_of(int index) {
  const int count = device_count();
  if (count == 0 || index < 0 || (index >= count && !are_shared)) {
    throw Error("there is no gpu(" + std::to_string(index) +
                "); GPUs that CUDA finds: " + describe_devices());
  }
  return index % count;
}

}  // namespace

bool Gpu::share(bool share) { return are_shared.exchange(share); }

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
    : index_(index), ordinal_(ordinal), stream_(ordinal), memories_(index, &stream_) {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw Error("the thread that waits for gpu(" + std::to_string(index) +
                ") could not be started: " + error.what());
  }
  ++contexts;
}

Gpu::~Gpu() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  wake_.notify_one();
  thread_.join();
  --contexts;
}

std::shared_ptr<Event> Gpu::event() {
  return events_.take([this] { return std::make_unique<Event>(ordinal_); });
}

void Gpu::post(std::function<void()> task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void Gpu::when_reached(const std::shared_ptr<Event>& event, Done done, double limit) {
  post([this, wait = Wait{event, std::move(done), limit, Clock::now()}]() mutable {
    waits_.push_back(std::move(wait));
  });
}

void Gpu::when_done(Done done) {
  try {
    const std::shared_ptr<Event> event = this->event();
    event->record(&stream_);
    return when_reached(event, std::move(done));
  } catch (const std::exception&) {
    // Kernels may use memory that `done` gives back.
  }
  post([this, done = std::move(done)] {
    std::string error;
    try {
      stream_.synchronize();
    } catch (const std::exception& caught) {
      error = caught.what();
    }
    done(error);
  });
}

void Gpu::run() {
  // Linux lets a thread sleep for up to 50 microseconds longer than it asks for, unless told
  // otherwise.
  prctl(PR_SET_TIMERSLACK, 1000UL);
  std::optional<OnDevice> on_device;
  try {
    on_device.emplace(ordinal_);
  } catch (const std::exception&) {
    // Calls of CUDA get the same error.
  }
  auto idle_since = Clock::now();
  for (;;) {
    if (run_task() || end_wait()) {
      idle_since = Clock::now();
    } else if (!pause(idle_since)) {
      return;
    }
  }
}

/// Returns false if there is no task.
bool Gpu::run_task() {
  std::function<void()> task;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (tasks_.empty()) return false;
    task = std::move(tasks_.front());
    tasks_.pop_front();
  }
  const KeepsContext keeps_context;  // MXNet, which a task may call, may select another GPU.
  task();
  task = nullptr;  // What it owns may be of MXNet, too.
  return true;
}

/// Returns false if no wait is over.
bool Gpu::end_wait() {
  auto over = waits_.begin();
  std::string error;
  try {
    // Outputs of a round may be awaited before earlier sums of another round, which meets later.
    while (over != waits_.end() && !over->event->is_reached()) ++over;
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  if (over == waits_.end()) {
    over = std::find_if(waits_.begin(), waits_.end(), [now = Clock::now()](const Wait& wait) {
      const std::chrono::duration<double> waited = now - wait.begin;
      return wait.limit > 0 && waited.count() > wait.limit;
    });
    if (over == waits_.end()) return false;
    std::ostringstream text;
    text << "gpu(" << index_ << ") has not finished its sums in " << over->limit
         << " s: a kernel before them does not end, or the GPU is lost";
    error = text.str();
  }
  Done done = std::move(over->done);
  waits_.erase(over);
  const KeepsContext keeps_context;
  done(error);
  done = nullptr;
  return true;
}

/// Lets a short time pass, or less if a task comes. Returns false at the end of the context.
bool Gpu::pause(Clock::time_point idle_since) {
  using std::chrono::microseconds;
  // A thread that sleeps takes longer to wake than many kernels take to end. But a thread that does
  // not sleep takes the processor of another one.
  static const double available = processors();
  const bool may_spin = contexts <= available;
  const auto now = Clock::now();
  const auto idle = now - idle_since;
  std::unique_lock<std::mutex> lock(mutex_);
  const auto may_go_on = [this] { return ends_ || !tasks_.empty(); };
  if (may_spin && idle < microseconds(100)) {
    // A query of an event takes a lock of the driver, which launches need.
    while (!may_go_on() && Clock::now() < now + microseconds(3)) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  } else if (waits_.empty()) {
    wake_.wait(lock, may_go_on);
  } else {
    wake_.wait_for(lock,
                   std::clamp<Clock::duration>(idle / 32, microseconds(3), microseconds(1000)),
                   may_go_on);
  }
  return !ends_ || !tasks_.empty() || !waits_.empty();
}

}  // namespace gluon_syncbn::cuda

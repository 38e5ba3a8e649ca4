#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <vector>

#include "common/error.h"
#include "cuda/driver.h"
#include "cuda/runtime.h"

namespace gluon_syncbn::tests {

/// Throws Error if there is no GPU.
inline void require_gpu() {
  if (cuda::device_count() == 0) throw Error("GPUs: " + cuda::describe_devices());
}

/// Returns a function of the driver that the library itself does not use.
template <class Function>
Function* of_driver(const char* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
}

/// A point in the work of a stream of the first GPU that knows the time at which it was reached.
class TimedEvent {
 public:
  TimedEvent() {
    const cuda::OnDevice on_device(0);
    cuda::check(cuda::driver().create_event(&event_, 0), "cuEventCreate", 0);
  }
  ~TimedEvent() { cuda::driver().destroy_event(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  CUevent_st* handle() const { return event_; }

  void record(const cuda::Stream& stream) const {
    const cuda::OnDevice on_device(0);
    cuda::check(cuda::driver().record(event_, stream.handle()), "cuEventRecord", 0);
  }
  /// To be called when the work before this event has ended.
  double microseconds_since(const TimedEvent& other) const {
    using ElapsedTime = int(float* milliseconds, CUevent_st* from, CUevent_st* to);
    static auto* const elapsed_time = of_driver<ElapsedTime>("cuEventElapsedTime");
    const cuda::OnDevice on_device(0);
    float milliseconds = 0;
    cuda::check(elapsed_time(&milliseconds, other.event_, event_), "cuEventElapsedTime", 0);
    return 1e3 * static_cast<double>(milliseconds);
  }

 private:
  CUevent_st* event_ = nullptr;
};

inline double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

}  // namespace gluon_syncbn::tests

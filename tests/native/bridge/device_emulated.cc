#include <chrono>

#include "bridge/device.h"

namespace gluon_syncbn::bridge {

void* native_stream(const cuda::Stream&) { return nullptr; }
std::int64_t cache_bytes(int) { return 1 << 16; }

/// Time of the host, launching included.
struct Timer::Impl {
  std::chrono::steady_clock::time_point begin;
  std::chrono::steady_clock::time_point end;
};

Timer::Timer(int) : impl_(std::make_unique<Impl>()) {}
Timer::~Timer() = default;

void Timer::begin(cuda::Stream* stream) {
  stream->synchronize();
  impl_->begin = std::chrono::steady_clock::now();
}
void Timer::end(cuda::Stream* stream) {
  stream->synchronize();
  impl_->end = std::chrono::steady_clock::now();
}
bool Timer::has_begun() const { return true; }
double Timer::seconds() const {
  return std::chrono::duration<double>(impl_->end - impl_->begin).count();
}

}  // namespace gluon_syncbn::bridge

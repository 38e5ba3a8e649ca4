#ifndef GLUON_SYNCBN_TESTS_NATIVE_BRIDGE_DEVICE_H_
#define GLUON_SYNCBN_TESTS_NATIVE_BRIDGE_DEVICE_H_

#include <cstdint>
#include <memory>

#include "cuda/runtime.h"

namespace gluon_syncbn::bridge {

/// What runtime.h does not tell, as the library does not need it. Everything throws Error.
void* native_stream(const cuda::Stream& stream);
std::int64_t cache_bytes(int ordinal);

/// Measures time as the GPU sees it.
class Timer {
 public:
  explicit Timer(int ordinal);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void begin(cuda::Stream* stream);
  void end(cuda::Stream* stream);
  /// Whether the work before begin() is done.
  bool has_begun() const;
  /// Waits for the work before end().
  double seconds() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace gluon_syncbn::bridge

#endif  // GLUON_SYNCBN_TESTS_NATIVE_BRIDGE_DEVICE_H_

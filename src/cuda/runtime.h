#ifndef GLUON_SYNCBN_CUDA_RUNTIME_H_
#define GLUON_SYNCBN_CUDA_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/error.h"

namespace gluon_syncbn::cuda {

// All that this library asks of the CUDA runtime, in terms of objects. runtime.cc implements it;
// the tests run that on a CUDA runtime without a GPU (tests/fake_cuda). Everything throws Error,
// which names the call and the GPU.

/// Number of GPUs: 0 where there is no GPU, no driver or one that is too old. As what follows, it
/// makes no context on a GPU.
int device_count();

/// What device_count() found, in words: the GPUs by name, or why there is none.
std::string describe_devices();

/// Whether kernels of GPU `reader` can read the memory of GPU `owner`, another one. Makes it so
/// where it can, which takes a context on both.
bool enable_reading(int reader, int owner);

/// Makes a GPU that of the calling thread, as every call below does for itself: around several of
/// them it is done once. After that the thread has again what it had, be it no GPU at all, and no
/// other GPU has got a context by that.
class OnDevice {
 public:
  explicit OnDevice(int ordinal);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  void* const before_;  // context
  bool changed_ = false;
};

class Stream;

/// A point in the work of a stream.
class Event {
 public:
  explicit Event(int ordinal);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(Stream* stream);
  // For a thread that has a GPU, whichever. They throw what went wrong in the work before the
  // point.
  /// Whether all of it is done.
  bool is_reached() const;
  /// Keeps the calling thread until all of it is done.
  void synchronize() const;

  struct Impl;
  Impl& impl() const { return *impl_; }

 private:
  const std::unique_ptr<Impl> impl_;
};

/// A queue of work for one GPU that waits for no other queue, MXNet's included. May be used from
/// several threads at a time.
class Stream {
 public:
  explicit Stream(int ordinal);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int ordinal() const { return ordinal_; }

  /// Work that follows starts behind what was recorded in `event`, on whatever GPU.
  void wait(const Event& event);
  /// Keeps the calling thread until all work is done. Throws what went wrong in it.
  void synchronize();
  /// Whether work is recorded into a CUDA graph instead of being done.
  bool is_capturing() const;
  void zero(void* begin, std::size_t bytes);
  void copy(void* to, const void* from, std::size_t bytes);

  struct Impl;
  Impl& impl() const { return *impl_; }

 private:
  const int ordinal_;
  const std::unique_ptr<Impl> impl_;
};

class OutOfMemory : public Error {
 public:
  using Error::Error;
};

/// Memory that kernels can use: that of a GPU, or memory of the host which all GPUs see.
class Memory {
 public:
  enum class Place { kDevice, kHost };

  /// Throws OutOfMemory where there is none.
  Memory(Place place, int ordinal, std::size_t bytes);
  /// Memory that the host program has allocated, and lends for as long as this lives.
  Memory(Place place, int ordinal, std::size_t bytes, std::shared_ptr<void> lent)
      : place_(place),
        ordinal_(ordinal),
        bytes_(bytes),
        lent_(std::move(lent)),
        data_(lent_.get()) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  Place place() const { return place_; }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  const Place place_;
  const int ordinal_;
  const std::size_t bytes_;
  const std::shared_ptr<void> lent_;
  void* data_ = nullptr;
};

/// Runs `body` (body.h) in `blocks` blocks behind all work of `stream`. Exists for the bodies in
/// instances.h.
template <class Body>
void launch(const Body& body, std::int64_t blocks, Stream* stream);

/// Loads that kernel to the thread's GPU, with this number.
template <class Body>
void load(int ordinal);

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_RUNTIME_H_

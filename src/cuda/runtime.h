#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/error.h"

struct CUctx_st;
struct CUevent_st;
struct CUstream_st;

namespace gluon_syncbn::cuda {

// The calls of the driver (driver.h) as objects. The tests run them on a driver without a GPU
// (tests/gpu/fake_cuda). Every function throws Error, which names the call and the GPU.

/// At most so many GPUs.
constexpr std::size_t kMostGpus = 64;

/// Number of GPUs: 0 if there is no GPU or no driver. This function and the next two make no
/// context on a GPU.
int device_count();

/// The compute capability of a GPU, such as 86 for 8.6.
int compute_capability(int ordinal);

/// Lists the GPUs of device_count() by name, or says why there is none.
std::string describe_devices();

/// Selects a GPU for the calling thread. The functions below do so themselves, except
/// Event::is_reached(). A scope around several of them does it once. The destructor restores the
/// former selection, even none, and makes no context on another GPU.
class OnDevice {
 public:
  explicit OnDevice(int ordinal);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  CUctx_st* const before_;
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
  /// Whether the work before the point is done. Throws the error of that work. To be called on a
  /// thread that has selected the GPU.
  bool is_reached() const;

 private:
  const int ordinal_;
  CUevent_st* event_ = nullptr;
};

/// A queue of work for one GPU, which waits for no other queue, not even MXNet's. Its kernels come
/// before waiting kernels of MXNet's streams. Several threads may use it at a time.
class Stream {
 public:
  explicit Stream(int ordinal);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int ordinal() const { return ordinal_; }

  /// Blocks the calling thread until all work is done. Throws the error of that work.
  void synchronize();
  void fill(void* begin, int byte, std::size_t bytes);
  void zero(void* begin, std::size_t bytes) { fill(begin, 0, bytes); }
  void copy(void* to, const void* from, std::size_t bytes);

  CUstream_st* handle() const { return stream_; }

 private:
  const int ordinal_;
  CUstream_st* stream_ = nullptr;
};

class OutOfMemory : public Error {
 public:
  using Error::Error;
};

/// Memory that kernels can use: of one GPU, or pinned memory of the host, which all GPUs reach.
class Memory {
 public:
  enum class Place { kDevice, kHost };

  /// Throws OutOfMemory if CUDA has none left.
  Memory(Place place, int ordinal, std::size_t bytes);
  /// Memory that MXNet has allocated, and lends as long as this object lives.
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

}  // namespace gluon_syncbn::cuda

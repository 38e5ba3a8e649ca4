#ifndef GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_DEVICE_KIND_H_
#define GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_DEVICE_KIND_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "fake_mxnet/types.h"

namespace gluon_syncbn::host {

/// All that the stand-in has to know of one type of device. CPU contexts are one; another type
/// (GPUs, or streams of one GPU that pass for several) is a subclass given to add().
class DeviceKind {
 public:
  virtual ~DeviceKind() = default;

  virtual void* allocate(int device, std::size_t bytes) = 0;
  virtual void release(int device, void* data) = 0;
  /// Both return when the copy is done.
  virtual void copy_from_host(int device, void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy_to_host(int device, void* to, const void* from, std::size_t bytes) = 0;
  /// Adds up `inputs` and writes or adds (`request`) the sum to `out`. Returns when that is done.
  virtual void sum(int device, int dtype, const std::vector<const void*>& inputs, std::size_t size,
                   OpReq request, void* out) = 0;

  /// Makes the calling thread one that works for `device`.
  virtual void enter(int /*device*/) {}
  /// RunContext::stream of a worker, for as long as the worker lives; CPU workers have none.
  virtual std::shared_ptr<void> make_stream(int /*device*/) { return nullptr; }
  /// Threads that work off a device's operations (MXNET_CPU_WORKER_NTHREADS is 1 by default,
  /// MXNET_GPU_WORKER_NTHREADS is 2).
  virtual std::size_t workers_per_device() const { return 1; }
  /// Where the context of an array that MXNet makes from memory of `device` says it lives: CPU
  /// memory does not know its device, so that it reads cpu(0) (ndarray.h, Chunk(TBlob, dev_id)).
  virtual Context context_of_memory(int device) const = 0;

  /// Throws Error for a type that nobody added, as MXNet built without CUDA does.
  static DeviceKind& of(int dev_type);
  static void add(int dev_type, std::unique_ptr<DeviceKind> kind);
};

}  // namespace gluon_syncbn::host

#endif  // GLUON_SYNCBN_TESTS_NATIVE_FAKE_MXNET_DEVICE_KIND_H_

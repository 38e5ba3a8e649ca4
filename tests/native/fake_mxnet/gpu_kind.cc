// GPU contexts of the stand-in, by way of core/cuda/runtime.h: on real GPUs, or on emulated ones.
// Contexts share GPUs where there are fewer of these, as the library does with
// GLUON_SYNCBN_SHARE_GPUS.

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "cuda/runtime.h"
#include "fake_mxnet/device_kind.h"

namespace gluon_syncbn::host {
namespace {

class GpuKind : public DeviceKind {
 public:
  void* allocate(int device, std::size_t bytes) override {
    auto memory = std::make_unique<cuda::Memory>(cuda::Memory::Place::kDevice, ordinal(device),
                                                 bytes > 0 ? bytes : 1);
    void* data = memory->data();
    const std::lock_guard<std::mutex> lock(mutex_);
    memories_[data] = std::move(memory);
    return data;
  }
  void release(int /*device*/, void* data) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    memories_.erase(data);
  }
  void copy_from_host(int device, void* to, const void* from, std::size_t bytes) override {
    copy(device, to, from, bytes);
  }
  void copy_to_host(int device, void* to, const void* from, std::size_t bytes) override {
    copy(device, to, from, bytes);
  }
  void sum(int device, int dtype, const std::vector<const void*>& inputs, std::size_t size,
           OpReq request, void* out) override {
    // On the host: how it is done is of no interest here.
    const std::size_t bytes = size * size_of(dtype);
    std::vector<std::vector<char>> copies(inputs.size() + 1, std::vector<char>(bytes));
    std::vector<const void*> of_inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      copy(device, copies[i].data(), inputs[i], bytes);
      of_inputs.push_back(copies[i].data());
    }
    copy(device, copies.back().data(), out, bytes);
    of(kCPU).sum(0, dtype, of_inputs, size, request, copies.back().data());
    copy(device, out, copies.back().data(), bytes);
  }
  std::size_t workers_per_device() const override { return 2; }
  Context context_of_memory(int device) const override { return {kGPU, device}; }

 private:
  static int ordinal(int device) {
    const int count = cuda::device_count();
    if (count == 0) throw Error("no GPU: " + cuda::describe_devices());
    return device % count;
  }
  static void copy(int device, void* to, const void* from, std::size_t bytes) {
    cuda::Stream stream(ordinal(device));
    stream.copy(to, from, bytes);
    cuda::Event done(ordinal(device));
    done.record(&stream);
    done.synchronize();
  }

  std::mutex mutex_;
  std::map<void*, std::unique_ptr<cuda::Memory>> memories_;
};

[[maybe_unused]] const bool added = [] {
  DeviceKind::add(kGPU, std::make_unique<GpuKind>());
  return true;
}();

}  // namespace
}  // namespace gluon_syncbn::host

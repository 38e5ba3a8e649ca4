#include "fake_mxnet/device_kind.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

namespace gluon_syncbn::host {
namespace {

// In the order of elemwise_sum.h: up to four from right to left, more one after the other.
template <class T>
void sum_of(const std::vector<const void*>& inputs, std::size_t size, OpReq request, void* out) {
  T* result = static_cast<T*>(out);
  const auto input = [&](std::size_t k) { return static_cast<const T*>(inputs[k]); };
  for (std::size_t i = 0; i < size; ++i) {
    const T before = request == kAdd ? result[i] : T(0);
    if (inputs.size() <= 4) {
      T sum = input(inputs.size() - 1)[i];
      for (std::size_t k = inputs.size() - 1; k-- > 0;) sum = input(k)[i] + sum;
      result[i] = before + sum;
    } else {
      T sum = before;
      for (std::size_t k = 0; k < inputs.size(); ++k) sum += input(k)[i];
      result[i] = sum;
    }
  }
}

class CpuKind : public DeviceKind {
 public:
  void* allocate(int /*device*/, std::size_t bytes) override { return ::operator new(bytes); }
  void release(int /*device*/, void* data) override { ::operator delete(data); }
  void copy_from_host(int /*device*/, void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void copy_to_host(int /*device*/, void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void sum(int /*device*/, int dtype, const std::vector<const void*>& inputs, std::size_t size,
           OpReq request, void* out) override {
    switch (dtype) {
      case kFloat32:
        return sum_of<float>(inputs, size, request, out);
      case kFloat64:
        return sum_of<double>(inputs, size, request, out);
      default:
        throw Error("the stand-in adds up float32 and float64 only");
    }
  }
  Context context_of_memory(int /*device*/) const override { return {kCPU, 0}; }
};

struct Registry {
  std::mutex mutex;
  std::map<int, std::unique_ptr<DeviceKind>> kinds;

  Registry() { kinds[kCPU] = std::make_unique<CpuKind>(); }
  static Registry& get() {
    static Registry registry;
    return registry;
  }
};

}  // namespace

DeviceKind& DeviceKind::of(int dev_type) {
  Registry& registry = Registry::get();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  const auto found = registry.kinds.find(dev_type);
  if (found == registry.kinds.end()) {
    throw Error(Context{dev_type, 0}.name() + ": this host has no devices of this type");
  }
  return *found->second;
}

void DeviceKind::add(int dev_type, std::unique_ptr<DeviceKind> kind) {
  Registry& registry = Registry::get();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.kinds[dev_type] = std::move(kind);
}

}  // namespace gluon_syncbn::host

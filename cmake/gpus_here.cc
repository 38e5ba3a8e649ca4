// Prints the compute capabilities of the GPUs of this machine, such as 75;86. It asks the driver,
// which needs neither CUDA's headers nor its compiler.

#include <dlfcn.h>

#include <cstdio>

namespace {

constexpr int kComputeCapabilityMajor = 75;  // CUdevice_attribute in cuda.h
constexpr int kComputeCapabilityMinor = 76;

}  // namespace

int main() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return 0;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  const auto attribute =
      reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute"));
  if (!init || !count || !get || !attribute || init(0) != 0) return 0;

  int gpus = 0;
  if (count(&gpus) != 0) return 0;
  const char* separator = "";
  for (int i = 0; i < gpus; ++i) {
    int device = 0;
    int major = 0;
    int minor = 0;
    if (get(&device, i) != 0 || attribute(&major, kComputeCapabilityMajor, device) != 0 ||
        attribute(&minor, kComputeCapabilityMinor, device) != 0) {
      continue;
    }
    std::printf("%s%d%d", separator, major, minor);
    separator = ";";
  }
}

// The fake CUDA runtime does what CUDA's manual says where the library depends on it.

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "fake_cuda/fake_cuda.h"
#include "fake_cuda/setting.h"

namespace gluon_syncbn::tests {
namespace {

/// A device that nothing else uses, as a new process would find it, and without faults.
class OnFreshDevice {
 public:
  explicit OnFreshDevice(int ordinal) : ordinal_(ordinal) {
    fakeCudaReset(ordinal_);
    cudaSetDevice(ordinal_);
    cudaGetLastError();
  }
  ~OnFreshDevice() {
    fakeCudaClearFaults();
    fakeCudaReset(ordinal_);
    cudaSetDevice(0);
    cudaGetLastError();
  }
  OnFreshDevice(const OnFreshDevice&) = delete;
  OnFreshDevice& operator=(const OnFreshDevice&) = delete;

 private:
  int ordinal_;
};

constexpr std::size_t kBytes = 1000;
constexpr int kSpare = 9;  // a device for these tests alone
const Setting kOneMore("DEVICES", 12);

struct StoreMode {
  char* to;
  char value;
};
void store(const void* given, long) {
  const auto* arguments = static_cast<const StoreMode*>(given);
  *arguments->to = arguments->value;
}
cudaError_t launch(char* to, char value, cudaStream_t stream) {
  const StoreMode arguments{to, value};
  return fakeCudaLaunch("store", &arguments, sizeof arguments, store, 1, stream);
}

}  // namespace

TEST_CASE("fake cuda: contexts are made by the first call that needs one") {
  const OnFreshDevice device(kSpare);
  int count = 0;
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  int can = 0;
  CHECK(cudaDeviceCanAccessPeer(&can, kSpare, 0) == cudaSuccess);
  CHECK_FALSE(fakeCudaHasContext(kSpare));
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, kBytes) == cudaSuccess);
  CHECK(fakeCudaHasContext(kSpare));
  CHECK(cudaFree(memory) == cudaSuccess);
}

TEST_CASE("fake cuda: from CUDA 12 on cudaSetDevice makes the context") {
  const OnFreshDevice device(kSpare);
  const Setting version("VERSION", 12000);
  std::thread([] { CHECK(cudaSetDevice(kSpare) == cudaSuccess); }).join();
  CHECK(fakeCudaHasContext(kSpare));
}

TEST_CASE("fake cuda: fresh memory is no number, and so is memory that was given back") {
  const OnFreshDevice device(kSpare);
  void* memory = nullptr;
  std::array<unsigned char, kBytes> host{};
  REQUIRE(cudaMalloc(&memory, kBytes) == cudaSuccess);
  CHECK(cudaMemcpy(host.data(), memory, kBytes, cudaMemcpyDefault) == cudaSuccess);
  for (const unsigned char byte : host) CHECK(byte == 0xff);
  CHECK(cudaFree(memory) == cudaSuccess);
}

TEST_CASE(
    "fake cuda: a call that fails leaves its error for cudaGetLastError, once, on its thread") {
  const OnFreshDevice device(kSpare);
  fakeCudaInject("cudaMalloc@9");
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, kBytes) == cudaErrorMemoryAllocation);
  std::thread([] { CHECK(cudaGetLastError() == cudaSuccess); }).join();
  CHECK(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(fakeCudaClearFaults() == 1);
}

TEST_CASE("fake cuda: a fault of a kernel breaks its device for good, and no other") {
  const OnFreshDevice device(kSpare);
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, kBytes) == cudaSuccess);
  fakeCudaInject("kernel@9");
  CHECK(launch(static_cast<char*>(memory), 1, stream) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
  CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
  CHECK(launch(static_cast<char*>(memory), 1, stream) == cudaErrorIllegalAddress);
  std::thread([] {
    CHECK(cudaSetDevice(0) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
  }).join();
}

TEST_CASE("fake cuda: kernels reach the memory of peers where that was enabled") {
  const OnFreshDevice device(kSpare);
  const OnFreshDevice other(kSpare + 1);
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, kBytes) == cudaSuccess);  // of the other
  cudaSetDevice(kSpare);
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  SUBCASE("enabled") {
    CHECK(cudaDeviceEnablePeerAccess(kSpare + 1, 0) == cudaSuccess);
    CHECK(cudaDeviceEnablePeerAccess(kSpare + 1, 0) == cudaErrorPeerAccessAlreadyEnabled);
    CHECK(launch(static_cast<char*>(memory), 7, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(*static_cast<char*>(memory) == 7);
  }
  SUBCASE("not enabled") {
    CHECK(launch(static_cast<char*>(memory), 7, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
  }
  SUBCASE("enabled and broken") {
    const Setting broken("PEERS", 2);
    CHECK(cudaDeviceEnablePeerAccess(kSpare + 1, 0) == cudaSuccess);
    CHECK(launch(static_cast<char*>(memory), 7, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(*static_cast<char*>(memory) != 7);
  }
}

TEST_CASE("fake cuda: streams run on their own and wait for events") {
  const OnFreshDevice device(kSpare);
  const Setting slow("DELAY", 2000);
  cudaStream_t first = nullptr;
  cudaStream_t second = nullptr;
  cudaEvent_t event = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  void* memory = nullptr;
  void* pinned = nullptr;
  REQUIRE(cudaMalloc(&memory, 1) == cudaSuccess);
  REQUIRE(cudaHostAlloc(&pinned, 1, cudaHostAllocDefault) == cudaSuccess);
  auto* byte = static_cast<char*>(memory);
  for (char i = 0; i < 20; ++i) {
    CHECK(launch(byte, i, first) == cudaSuccess);
    CHECK(cudaEventRecord(event, first) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(second, event, 0) == cudaSuccess);
    CHECK(cudaMemcpyAsync(pinned, byte, 1, cudaMemcpyDefault, second) == cudaSuccess);
    CHECK(cudaEventRecord(event, second) == cudaSuccess);
    CHECK(cudaEventSynchronize(event) == cudaSuccess);
    CHECK(*static_cast<char*>(pinned) == i);
  }
  // Events are of one device only.
  cudaSetDevice(0);
  cudaStream_t elsewhere = nullptr;
  REQUIRE(cudaStreamCreate(&elsewhere) == cudaSuccess);
  CHECK(cudaEventRecord(event, elsewhere) == cudaErrorInvalidResourceHandle);
  CHECK(launch(byte, 0, first) == cudaErrorInvalidResourceHandle);
  cudaStreamDestroy(elsewhere);
  cudaSetDevice(kSpare);
  cudaStreamDestroy(first);
  cudaStreamDestroy(second);
  cudaFree(memory);
  cudaFreeHost(pinned);
}

TEST_CASE("fake cuda: copies keep their caller as CUDA's do") {
  const OnFreshDevice device(kSpare);
  void* memory = nullptr;
  void* pinned = nullptr;
  std::vector<char> pageable(kBytes, 1);
  REQUIRE(cudaMalloc(&memory, kBytes) == cudaSuccess);
  REQUIRE(cudaHostAlloc(&pinned, kBytes, cudaHostAllocDefault) == cudaSuccess);
  const auto blocks = [&](void* to, const void* from) {
    const long before = fakeCudaCount("blocking copy", kSpare);
    CHECK(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDefault, nullptr) == cudaSuccess);
    return fakeCudaCount("blocking copy", kSpare) > before;
  };
  CHECK_FALSE(blocks(memory, pinned));
  CHECK_FALSE(blocks(pinned, memory));
  CHECK_FALSE(blocks(memory, pageable.data()));
  CHECK(blocks(pageable.data(), memory));
  CHECK(blocks(pageable.data(), pinned));
  // What lies behind the end is nobody's.
  CHECK(cudaMemcpyAsync(memory, pinned, kBytes + 1, cudaMemcpyDefault, nullptr) ==
        cudaErrorInvalidValue);
  cudaGetLastError();
  CHECK(cudaFree(memory) == cudaSuccess);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("fake cuda: a device has so much memory and no more") {
  const OnFreshDevice device(kSpare);
  const Setting little("MEMORY", 1);
  void* memory = nullptr;
  void* more = nullptr;
  CHECK(cudaMalloc(&memory, 1 << 20) == cudaSuccess);
  CHECK(cudaMalloc(&more, 1) == cudaErrorMemoryAllocation);
  CHECK(cudaFree(memory) == cudaSuccess);
  CHECK(cudaMalloc(&memory, 1 << 20) == cudaSuccess);
  CHECK(cudaFree(memory) == cudaSuccess);
}

}  // namespace gluon_syncbn::tests

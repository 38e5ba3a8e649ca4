#pragma once

// What src/cuda/kernels/kernel.cuh is for a CUDA compiler: launches of all kernels there are, which
// run in lockstep on a stream of the fake CUDA runtime.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/check.h"
#include "cuda/kernels/instances.h"
#include "cuda/runtime.h"
#include "emulation/lockstep.h"
#include "fake_cuda/fake_cuda.h"

namespace gluon_syncbn::tests {

template <class Body>
struct Arguments {
  Body body;
  Order order;
};

template <class Body>
void run(const void* given, long blocks) {
  const auto* arguments = static_cast<const Arguments<Body>*>(given);
  run_in_lockstep(arguments->body, blocks, arguments->order);
}

}  // namespace gluon_syncbn::tests

namespace gluon_syncbn::cuda {

template <class Body>
void launch(const Body& body, std::int64_t blocks, Stream* stream) {
  if (blocks == 0) return;
  tests::Arguments<Body> arguments{body, tests::order_of_kernels()};
  static_assert(std::is_trivially_copyable_v<tests::Arguments<Body>>);
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
  // The fake CUDA looks for addresses in all bytes, and old ones may be left between members. GCC
  // 12 leaves bytes after the last member as they are, so that `order` has none after it.
  __builtin_clear_padding(&arguments);
#endif
  const OnDevice on_device(stream->ordinal());
  const cudaError_t status =
      fakeCudaLaunch(&arguments, sizeof arguments, tests::run<Body>, blocks, stream->handle());
  check(status, std::string("kernel '") + Body::kName + "'", stream->ordinal());
}

template <class Body>
void load(int ordinal) {
  check(fakeCudaLoad(tests::run<Body>), std::string("kernel '") + Body::kName + "'", ordinal);
}

#define GLUON_SYNCBN_LAUNCH(...)                                   \
  template void launch(const __VA_ARGS__&, std::int64_t, Stream*); \
  template void load<__VA_ARGS__>(int);

}  // namespace gluon_syncbn::cuda

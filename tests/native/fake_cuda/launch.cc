// launch() of core/cuda/runtime.h on the fake CUDA runtime: all else is runtime.cc, as it is
// shipped. Kernels run on the CPU in lockstep.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "common/dtype.h"
#include "cuda/check.h"
#include "cuda/kernels/instances.h"
#include "cuda/runtime.h"
#include "emulation/lockstep.h"
#include "fake_cuda/fake_cuda.h"

namespace gluon_syncbn::cuda {
namespace {

template <class Body>
struct Arguments {
  Body body;
  tests::Order order;
};

template <class Body>
void run(const void* given, long blocks) {
  const auto* arguments = static_cast<const Arguments<Body>*>(given);
  tests::run_in_lockstep(arguments->body, blocks, arguments->order);
}

}  // namespace

template <class Body>
void launch(const Body& body, std::int64_t blocks, Stream* stream) {
  if (blocks == 0) return;
  const Arguments<Body> arguments{body, tests::order_of_kernels()};
  static_assert(std::is_trivially_copyable_v<Arguments<Body>>);
  const OnDevice on_device(stream->ordinal());
  const cudaError_t status =
      fakeCudaLaunch(Body::kName, &arguments, sizeof arguments, run<Body>, blocks, native(*stream));
  check(status, std::string("kernel '") + Body::kName + "'", stream->ordinal());
}

#define GLUON_SYNCBN_EMULATE(...) template void launch(const __VA_ARGS__&, std::int64_t, Stream*);
#define GLUON_SYNCBN_EMULATE_DATA(T) GLUON_SYNCBN_CUDA_DATA_BODIES(GLUON_SYNCBN_EMULATE, T)
GLUON_SYNCBN_FOR_EACH_DTYPE(GLUON_SYNCBN_EMULATE_DATA)
GLUON_SYNCBN_CUDA_CHANNEL_BODIES(GLUON_SYNCBN_EMULATE)
#undef GLUON_SYNCBN_EMULATE_DATA
#undef GLUON_SYNCBN_EMULATE

}  // namespace gluon_syncbn::cuda

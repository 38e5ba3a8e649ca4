#include <doctest/doctest.h>

#include "cuda/runtime.h"
#include "mxnet/gpu_pool.h"
#include "mxnet/layer.h"

namespace gluon_syncbn::tests {

TEST_CASE_FIXTURE(Library, "gpu pool: memory that MXNet lends goes back to it") {
  const auto memory = mxnet::lend_from_pool(1, 1001);
  CHECK(fake_mxnet::handles_given_out() == 1);
  cuda::Stream stream(1 % cuda::device_count());
  stream.zero(memory.get(), 1001);
  stream.synchronize();
}

}  // namespace gluon_syncbn::tests

#include <doctest/doctest.h>

#include <cstddef>

#include "mxnet/gpu_pool.h"
#include "support/host_library.h"

namespace gluon_syncbn::tests {

TEST_CASE("gpu pool: memory that the host lends goes back to it") {
  load_host();
  const auto memory = mxnet::lend_from_pool(1, 1001);
  REQUIRE(memory.get() != nullptr);
  auto* bytes = static_cast<char*>(memory.get());  // GPUs are emulated in memory of the host
  for (std::size_t i = 0; i < 1001; ++i) bytes[i] = 1;
}

}  // namespace gluon_syncbn::tests

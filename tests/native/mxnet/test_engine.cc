// The two forms of MXNet's engine; FAKE_MXNET_ENGINE_ARGUMENTS chooses that of the process.

#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "fake_mxnet/engine.h"
#include "mxnet/engine.h"
#include "mxnet/layer.h"

namespace gluon_syncbn::tests {

TEST_CASE_FIXTURE(Library, "engine: the arguments of its functions are counted") {
  CHECK(mxnet::count_engine_arguments() == fake_mxnet::engine_arguments());
}

TEST_CASE_FIXTURE(Library, "engine: asynchronous dependencies between GPUs are refused") {
  const Layer layer("bn", 3, 1);
  const Batch x({{2, 3, 4}}, 1);
  using Setting = std::pair<const char*, const char*>;
  for (const auto& [name, value] : {Setting{"MXNET_ENGINE_TYPE", "ThreadedEnginePerDeviceAsync"},
                                    Setting{"MXNET_ASYNC_GPU_ENGINE", "1"}}) {
    const ScopedVariable variable(name, value);
    const std::string expected = std::string("'bn': ") + name + "=" + value + " lets operations";
    if (fake_mxnet::engine_arguments() == 4 && device(0).dev_type == mxnet::kGPUContext) {
      CHECK_THROWS_WITH(layer.call(x.arrays), doctest::Contains(expected.c_str()));
    } else {
      CHECK_NOTHROW(layer.call(x.arrays)[0].out.read());
    }
  }
  const ScopedVariable variable("MXNET_ASYNC_GPU_ENGINE", "0");
  CHECK_NOTHROW(layer.call(x.arrays)[0].out.read());
}

}  // namespace gluon_syncbn::tests

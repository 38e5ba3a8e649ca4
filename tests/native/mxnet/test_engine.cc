#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>

#include "mxnet/engine.h"
#include "support/ranks.h"

namespace gluon_syncbn::tests {
namespace {

/// An engine that looks how many tell it of an error at the same time.
struct Engine {
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  std::atomic<int> errors{0};

  static void complete(void* engine, void* nested, const void* error) {
    auto& self = *static_cast<Engine*>(engine);
    if (error) ++self.errors;
    if (nested) {
      // What the error makes ready fails at once, on the same thread.
      self.completion(nullptr).fail("consequence");
      return;
    }
    const int now = ++self.inside;
    self.most = std::max<int>(self.most, now);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    --self.inside;
  }
  mxnet::Completion completion(void* param) {
    return mxnet::Completion(mxnet::OnComplete{&complete, this, param});
  }
};

}  // namespace

TEST_CASE("engine: hears of errors one after the other, whoever tells") {
  Engine engine;
  run_ranks(4, [&](std::size_t rank) {
    for (int i = 0; i < 5; ++i) engine.completion(rank == 0 ? &engine : nullptr).fail("error");
  });
  CHECK(engine.errors == 4 * 5 + 5);
  CHECK(engine.most == 1);
}

}  // namespace gluon_syncbn::tests

// The library's part of one GPU context: memory, events, and the thread that completes work.

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda/backend.h"
#include "cuda/gpu.h"
#include "cuda/needs_gpu.h"
#include "support/refused_threads.h"
#include "support/step.h"

namespace gluon_syncbn::tests {
namespace {

constexpr int kContext = 200;  // no other test uses this context

/// Errors of all work on a GPU so far.
std::vector<std::string> finish(cuda::Gpu* gpu) {
  Finishes finishes;
  gpu->when_done(finishes.one());
  return finishes.wait(1);
}

}  // namespace

TEST_CASE("cuda gpu: without a thread of its own a context is refused, until there can be one") {
  need_gpu();
  const ShareGpus share;
  cuda::backend_of(kContext + 2, "layer");  // the driver may start threads for its first context
  const int before = started_threads();
  cuda::backend_of(kContext, "layer");
  const int needed = started_threads() - before;
  REQUIRE(needed > 0);
  {
    const RefusedThreads refused(needed - 1);
    CHECK_THROWS_WITH(
        cuda::backend_of(kContext + 1, "layer"),
        doctest::Contains("layer: the thread that waits for gpu(201) could not be started: "));
  }
  cuda::backend_of(kContext + 1, "layer");
  CHECK(finish(&cuda::Gpu::of(kContext + 1)) == std::vector<std::string>{""});
  const RefusedThreads refused(0);  // it needs no more of them
  CHECK(finish(&cuda::Gpu::of(kContext + 1)) == std::vector<std::string>{""});
}

#ifdef GLUON_SYNCBN_FAKE_CUDA

namespace {

std::vector<std::size_t> borrowed;
std::shared_ptr<void> to_lend;

std::shared_ptr<void> lend(cuda::Memory::Place, int index, std::size_t bytes) {
  CHECK(index == kContext);
  borrowed.push_back(bytes);
  return to_lend;
}

}  // namespace

TEST_CASE(
    "cuda gpu: the host program lends before CUDA is asked; out of memory, what is kept goes") {
  cuda::Gpu gpu(kContext, 0);
  const std::size_t large = 1 << 12;
  const auto own = std::make_shared<cuda::Memory>(cuda::Memory::Place::kDevice, 0, 2 * large * 8);
  to_lend = {own, own->data()};
  gpu.memory(large);  // and back again
  const auto kept_on_host = gpu.host_memory(large).get();

  const long released = fakeCudaCount("cuMemFree", -1);
  {
    const Faults refused("cuMemAlloc#1");
    const auto small = gpu.memory(large / 2);
    CHECK(fakeCudaCount("cuMemFree", -1) == released + 1);
    CHECK(gpu.host_memory(large).get() == kept_on_host);
  }

  const Faults refused("cuMemAlloc#1+;cuMemHostAlloc#1+");
  CHECK_THROWS_AS(gpu.memory(large), cuda::OutOfMemory);

  cuda::set_lender(lend);
  {
    const auto lent = gpu.memory(large);
    CHECK(borrowed == std::vector<std::size_t>{large * sizeof(double)});
    CHECK(lent->bytes() == large * sizeof(double));
    *static_cast<double*>(lent->data()) = 1;
  }
  // So does pinned memory.
  CHECK(gpu.host_memory(2 * large)->data() == own->data());
  CHECK(borrowed.size() == 2);
  to_lend = nullptr;
  CHECK_THROWS_AS(gpu.memory(2 * large), cuda::OutOfMemory);
  CHECK(borrowed.size() == 4);
  cuda::set_lender(nullptr);
  CHECK(finish(&gpu) == std::vector<std::string>{""});
}

namespace {

cuda::Gpu* lending_for = nullptr;

/// As MXNet's pool, which may wait for another thread that uses the GPU.
std::shared_ptr<void> lend_after_work(cuda::Memory::Place place, int, std::size_t bytes) {
  std::promise<void> done;
  std::thread other([&] {
    lending_for->memory(1);  // which is there
    lending_for->when_done([&](auto&) { done.set_value(); });
  });
  CHECK(done.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  other.join();
  const auto memory = std::make_shared<cuda::Memory>(place, 0, bytes);
  return {memory, memory->data()};
}

}  // namespace

TEST_CASE("cuda gpu: while it borrows memory, other threads put work on it") {
  cuda::Gpu gpu(kContext, 0);
  gpu.memory(1);  // and back again
  lending_for = &gpu;
  cuda::set_lender(lend_after_work);
  CHECK(gpu.memory(100) != nullptr);
  cuda::set_lender(nullptr);
  gpu.stream()->synchronize();
}

TEST_CASE("cuda gpu: memory goes back to the host program after the work that uses it") {
  cuda::Gpu gpu(kContext, 0);
  const std::size_t large = 1 << 12;
  const auto own = std::make_shared<cuda::Memory>(cuda::Memory::Place::kDevice, 0, 8 * large);
  const auto value = gpu.host_memory(1);
  auto* number = static_cast<double*>(value->data());
  *number = 1;
  double at_return = -1;
  to_lend = {own->data(), [&](void*) { at_return = *number; }};
  cuda::set_lender(lend);
  const Setting slow("DELAY", 2000);
  {
    const auto lent = gpu.memory(large);
    to_lend = nullptr;
    gpu.stream()->zero(lent->data(), sizeof(double));
    gpu.stream()->copy(number, lent->data(), sizeof(double));
  }
  const Faults refused("cuMemAlloc#1");
  gpu.memory(large / 2);
  cuda::set_lender(nullptr);
  CHECK(at_return == 0);
}

TEST_CASE("cuda gpu: a thread that waits for work asks CUDA seldom, and lets launches through") {
  cuda::Gpu gpu(kContext, 0);
  const auto memory = gpu.memory(1);
  const auto questions = [&] {
    const long before = fakeCudaCount("cuEventQuery", -1);
    CHECK(finish(&gpu) == no_errors(1));
    return fakeCudaCount("cuEventQuery", -1) - before;
  };
  gpu.stream()->synchronize();
  const Setting slow("DELAY", 2000);
  for (int i = 0; i < 20; ++i) gpu.stream()->zero(memory->data(), sizeof(double));
  const long asked = questions();  // for some 20 ms
  CHECK(asked > 1);
  CHECK(asked < 1000);
}

TEST_CASE("cuda gpu: an event that is reached does not wait for one that is awaited before") {
  cuda::Gpu gpu(kContext, 0);
  const auto memory = gpu.memory(1);
  const auto event = gpu.event();
  event->record(gpu.stream());
  gpu.stream()->synchronize();
  Finishes finishes;
  {
    const Setting stands_still("LOST", 0);
    gpu.stream()->zero(memory->data(), sizeof(double));
    gpu.when_done(finishes.one());
    gpu.when_reached(event, finishes.one(), 0.01);
    CHECK(finishes.wait(1) == no_errors(1));
  }
  CHECK(finishes.wait(2) == no_errors(2));
}

TEST_CASE("cuda gpu: without an event the thread waits for all work there is") {
  const Setting slow("DELAY", 2000);
  cuda::Gpu gpu(kContext, 0);
  const auto memory = gpu.memory(1);
  const auto value = gpu.host_memory(1);
  auto* number = static_cast<double*>(value->data());
  for (const std::string fault : {"cuEventCreate", "cuEventRecord"}) {
    CAPTURE(fault);
    *number = 1;
    gpu.stream()->zero(memory->data(), sizeof(double));
    gpu.stream()->copy(number, memory->data(), sizeof(double));
    const std::shared_ptr<cuda::Event> kept[] = {gpu.event(), gpu.event()};  // all there are
    fakeCudaInject(fault.c_str());
    Finishes finishes;
    gpu.when_done([&, done = finishes.one()](const std::string& error) {
      CHECK(*number == 0);
      done(error);
    });
    CHECK(finishes.wait(1) == std::vector<std::string>{""});
    CHECK(fakeCudaClearFaults() == 1);
  }
}

#endif

}  // namespace gluon_syncbn::tests

// What the adapter takes for granted about the host's arrays and engine, without the adapter.

#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "scenarios/host_api.h"
#include "scenarios/scenario.h"

namespace gluon_syncbn::scenarios {
namespace {

Array small(int device_index) {
  Array array({2}, host::kFloat32, device(device_index));
  array.fill(1);
  return array;
}

/// An operation that is not over before release() or the end of its life.
class Held {
 public:
  explicit Held(const Array& array, int device_index = 0) {
    push(device(device_index), Property::kNormal, {}, {&array},
         [this](const OnComplete& on_complete) { started_.set_value(on_complete); });
  }
  ~Held() { release(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  void release() {
    if (released_) return;
    released_ = true;
    started_.get_future().get()();
  }

 private:
  std::promise<OnComplete> started_;
  bool released_ = false;
};

/// Where an operation ran.
class Witness {
 public:
  std::function<void(OnComplete)> operation() {
    return [state = state_](const OnComplete& on_complete) {
      state->set_value(std::this_thread::get_id());
      on_complete();
    };
  }
  bool ran() { return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  std::thread::id thread() { return future_.get(); }

 private:
  const std::shared_ptr<std::promise<std::thread::id>> state_ =
      std::make_shared<std::promise<std::thread::id>>();
  std::shared_future<std::thread::id> future_ = state_->get_future().share();
};

std::thread::id worker_of(int device_index) {
  Witness witness;
  push(device(device_index), Property::kNormal, {}, {}, witness.operation());
  return witness.thread();
}

void shapes_share_a_buffer(Session&) {
  const Array first({2, 3}, host::kFloat32, device(0));
  const Array second({4, 5}, host::kFloat32, device(0));
  int ndim = 0;
  const int* shape = nullptr;
  check(host().get_shape(first.handle(), &ndim, &shape));
  require(ndim == 2 && shape[0] == 2 && shape[1] == 3, "the first shape");
  const int* other = nullptr;
  check(host().get_shape(second.handle(), &ndim, &other));
  require(other == shape && shape[0] == 4, "the next call on the thread overwrites the buffer");
  std::thread([&] { check(host().get_shape(first.handle(), &ndim, &other)); }).join();
  require(shape[0] == 4, "another thread has a buffer of its own");
}

void operations_run_on_workers_of_their_context(Session&) {
  const Array array = small(0);
  const auto here = std::this_thread::get_id();
  const auto first = worker_of(0);
  const auto second = worker_of(1);
  require(first != second && first != here, "devices have workers of their own");
  Witness ready;
  push(device(1), Property::kAsync, {}, {&array}, ready.operation());
  require(ready.ran() && ready.thread() == here,
          "an asynchronous operation that is ready runs inside the push");
  Witness late;
  {
    const Held held(array);
    push(device(1), Property::kAsync, {&array}, {}, late.operation());
    require(!late.ran(), "a reader waits for the writer");
  }
  if (Libraries::get().dev_type == host::kCPU) {
    require(late.thread() == second, "one that is not, on a worker of its context");
  }
}

void writers_and_readers_take_turns(Session&) {
  const Array array = small(0);
  auto first = std::make_unique<Held>(array);
  std::mutex mutex;
  std::string seen;
  const auto note = [&](char what) {
    return [&, what](const OnComplete& on_complete) {
      {
        const std::lock_guard<std::mutex> lock(mutex);
        seen += what;
      }
      on_complete();
    };
  };
  push(device(1), Property::kNormal, {&array}, {}, note('r'));
  push(device(1), Property::kNormal, {&array}, {}, note('r'));
  push(device(0), Property::kNormal, {}, {&array}, note('w'));
  push(device(1), Property::kNormal, {&array}, {}, note('r'));
  push(device(0), Property::kNormal, {}, {&array}, note('w'));
  first = nullptr;
  check(host().wait_all());
  require(seen == "rrwrw", "the order is that of the pushes: " + seen);
}

void an_error_is_thrown_once(Session&) {
  const Array first = small(0);
  const Array second = small(0);
  push(device(1), Property::kNormal, {}, {&first, &second}, [](const OnComplete& on_complete) {
    const host::Error error("left behind");
    on_complete(&error);
  });
  require_error([&] { check(host().wait_to_read(first.handle())); }, {"left behind"});
  // All that one operation wrote share what it left.
  check(host().wait_to_read(first.handle()));
  check(host().wait_to_read(second.handle()));
  check(host().wait_all());
}

void wait_all_throws_and_clears(Session&) {
  const Array array = small(0);
  fail(array, device(0), "seen by all");
  require_error([] { check(host().wait_all()); }, {"seen by all"});
  check(host().wait_to_read(array.handle()));
  check(host().wait_all());
}

void what_depends_on_an_error_is_skipped(Session&) {
  const Array broken = small(0);
  const Array result = small(1);
  Witness skipped;
  Witness not_skipped;
  fail(broken, device(0), "the cause");
  push(device(1), Property::kNormal, {&broken}, {&result}, skipped.operation());
  push(device(1), Property::kNoSkip, {&broken}, {}, not_skipped.operation());
  require_error([&] { check(host().wait_to_read(result.handle())); }, {"the cause"});
  check(host().wait_all());
  require(!skipped.ran(), "an operation that reads an error does not run");
  require(not_skipped.ran(), "but for one that asks to");
}

void an_array_may_go_before_its_operations(Session&) {
  auto array = std::make_unique<Array>(small(0));
  const Array result = small(1);
  auto held = std::make_unique<Held>(*array);
  Witness reader;
  push(device(1), Property::kNormal, {array.get()}, {&result}, reader.operation());
  array = nullptr;
  held = nullptr;
  check(host().wait_to_read(result.handle()));
  require(reader.ran(), "the reader ran");
}

void holding_and_asking(Session&) {
  const Array array = small(0);
  require(adapter().is_ready(array.handle()) == 1, "nothing writes the array");
  void* hold = adapter().hold(array.handle());
  require(hold != nullptr && adapter().is_ready(array.handle()) == 0, "it is held");
  adapter().release(hold);
  check(host().wait_to_read(array.handle()));
  require(adapter().is_ready(array.handle()) == 1, "it is given back");
}

/// One that was given back before it could begin.
void a_hold_that_never_began(Session&) {
  const Array array = small(0);
  void* first = adapter().hold(array.handle());
  void* second = adapter().hold(array.handle());
  adapter().release(second);
  require(adapter().is_ready(array.handle()) == 0, "the first one is still there");
  adapter().release(first);
  check(host().wait_to_read(array.handle()));
}

}  // namespace

std::vector<Scenario> engine_scenarios() {
  return {
      {"shapes share a buffer", shapes_share_a_buffer},
      {"operations run on workers of their context", operations_run_on_workers_of_their_context},
      {"writers and readers take turns", writers_and_readers_take_turns},
      {"an error is thrown once", an_error_is_thrown_once},
      {"wait_all throws and clears", wait_all_throws_and_clears},
      {"what depends on an error is skipped", what_depends_on_an_error_is_skipped},
      {"an array may go before its operations", an_array_may_go_before_its_operations},
      {"holding and asking", holding_and_asking},
      {"a hold that never began", a_hold_that_never_began},
  };
}

}  // namespace gluon_syncbn::scenarios

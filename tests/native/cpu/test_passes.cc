#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "common/half.h"
#include "cpu/backend.h"
#include "cpu/channel_math.h"
#include "support/activations.h"
#include "support/arrays.h"
#include "support/ranks.h"
#include "support/test_call.h"
#include "support/values.h"
#include "sync/meeting.h"
#include "sync/sync_group.h"

#ifdef __SANITIZE_THREAD__  // which is slow, and cannot tell these apart
#define GLUON_SYNCBN_DTYPES float
#else
#define GLUON_SYNCBN_DTYPES float, double, Half
#endif

namespace gluon_syncbn::tests {
namespace {

constexpr double kEps = 1e-3;
constexpr double kMomentum = 0.8;

/// One device with all that a step of it reads and writes.
template <class T>
struct Worker {
  using P = std::conditional_t<std::is_same_v<T, double>, double, float>;

  Worker(const Layout& layout, WriteMode write_in, std::uint32_t seed)
      : x(layout, 3, 1, seed),
        dy(layout, 0, 1, seed + 1),
        shortcut(layout, 0, 1, seed + 3),
        write(write_in) {
    y = dx = dshortcut = Data<T>(layout, 7, 1, seed + 2).elements;
    for (const double value : parameters(layout, 1, 5)) gamma.push_back(static_cast<P>(value));
    for (const double value : parameters(layout, 0, 6)) beta.push_back(static_cast<P>(value));
    mean = variance = gamma_gradient = beta_gradient = beta;
  }

  Backend::Forward forward() {
    Backend::Forward work;
    work.data = {Type<T>::kDType, x.layout};
    work.x = x.data();
    work.eps = kEps;
    work.gamma = gamma.data();
    work.beta = beta.data();
    work.activation = activation;
    if (adds_shortcut) work.shortcut = shortcut.data();
    work.write = write;
    work.y = y.data();
    work.running = {mean.data(), variance.data(), kMomentum, nullptr};
    work.saved = &saved;
    return work;
  }
  Backend::Backward backward() {
    Backend::Backward work;
    work.data = {Type<T>::kDType, x.layout};
    work.dy = dy.data();
    work.x = x.data();
    work.saved = saved;
    work.gamma = gamma.data();
    work.activation = activation;
    if (adds_shortcut) {
      work.y = y.data();
    } else {
      work.beta = beta.data();
    }
    work.gradients = {false,
                      write,
                      gamma_gradient.data(),
                      write,
                      beta_gradient.data(),
                      write,
                      dx.data(),
                      write,
                      adds_shortcut ? dshortcut.data() : nullptr};
    return work;
  }
  std::shared_ptr<TestCall> call() {
    const auto call = std::make_shared<TestCall>();
    call->on_complete = [this](const std::string& error) { told.push_back(error); };
    return call;
  }

  Data<T> x;
  Data<T> dy;
  Data<T> shortcut;
  WriteMode write;
  Activation activation;
  bool adds_shortcut = false;
  std::vector<T> y, dx, dshortcut;
  std::vector<P> gamma, beta, mean, variance, gamma_gradient, beta_gradient;
  Backend::Saved saved;
  std::vector<std::string> told;
};

template <class T>
using Workers = std::vector<Worker<T>>;

template <class T>
Workers<T> make_workers(const std::vector<Layout>& layouts, WriteMode write) {
  Workers<T> workers;
  for (const Layout& layout : layouts) {
    workers.emplace_back(layout, write, static_cast<std::uint32_t>(10 * workers.size()));
  }
  return workers;
}

template <class T, class MakePass>
DevicePasses passes_of(Workers<T>* workers, const MakePass& make_pass) {
  DevicePasses passes;
  for (auto& w : *workers) passes.push_back(make_pass(&w));
  return passes;
}

template <class T>
std::shared_ptr<DevicePass> make_forward(Worker<T>* w) {
  return cpu::backend()->forward(w->forward(), w->call());
}

template <class T>
std::shared_ptr<DevicePass> make_backward(Worker<T>* w) {
  return cpu::backend()->backward(w->backward(), w->call());
}

/// Every device computes for itself, as if each were a process of its own.
void pass_apart(const DevicePasses& passes) {
  std::vector<PartialStatistics> processes;
  for (const auto& pass : passes) {
    pass->sum();
    pass->merge({pass}, [&](const PartialStatistics& own, const std::string& error) {
      CHECK(error.empty());
      processes.push_back(own);
    });
  }
  for (const auto& pass : passes) pass->finish({pass}, processes);
}

template <class T>
void step_apart(Workers<T>* workers) {
  pass_apart(passes_of(workers, make_forward<T>));
  pass_apart(passes_of(workers, make_backward<T>));
}

template <class T>
void step_together(Workers<T>* workers, std::size_t last) {
  const auto forward = passes_of(workers, make_forward<T>);
  for (const auto& pass : forward) pass->sum();
  forward[last]->finish(forward, {});
  const auto backward = passes_of(workers, make_backward<T>);
  for (const auto& pass : backward) pass->sum();
  backward[last]->finish(backward, {});
}

/// Every worker on a thread of its own.
template <class MakePass>
void meet(Workers<float>* workers, const MakePass& make_pass) {
  const auto group = std::make_shared<SyncGroup>("layer 'a'", workers->size());
  const auto meeting = std::make_shared<Meeting>(group, 0, Direction::kForward);
  run_ranks(workers->size(), [&](std::size_t rank) {
    const auto pass = make_pass(&(*workers)[rank]);
    pass->sum();
    meeting->arrive({"cpu", static_cast<int>(rank)}, pass);
  });
}

template <class T>
void check_same(const Workers<T>& a, const Workers<T>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(a[i].y, b[i].y));
    CHECK(same_bits(a[i].dx, b[i].dx));
    CHECK(same_bits(a[i].dshortcut, b[i].dshortcut));
    CHECK(same_bits(a[i].mean, b[i].mean));
    CHECK(same_bits(a[i].variance, b[i].variance));
    CHECK(same_bits(a[i].gamma_gradient, b[i].gamma_gradient));
    CHECK(same_bits(a[i].beta_gradient, b[i].beta_gradient));
    CHECK(a[i].saved.count == b[i].saved.count);
    CHECK(a[i].told == std::vector<std::string>{"", ""});
  }
}

template <class T>
void check_step_together(Workers<T> workers, std::size_t last) {
  CAPTURE(last);
  auto expected = workers;
  step_apart(&expected);
  step_together(&workers, last);
  check_same(workers, expected);
}

const std::vector<std::vector<Layout>> kDevices = {
    {{2, 5, 49}},
    {{2, 5, 49}, {3, 5, 49}},
    {{40, 6, 1}, {40, 6, 1}, {7, 6, 3}},
    {{40, 6, 1}, {2, 6, 49}},
    {{0, 6, 49}, {2, 6, 49}},
    // As much as is taken some channels at a time.
    {{2, 67, 16000}},
    {{2, 67, 8000}, {2, 67, 8000}, {1, 67, 17}},
    {{0, 67, 1500}, {1, 67, 40}, {3, 67, 11000}},
    {{200000, 2, 1}, {1, 2, 20}},
};

/// Large arrays take long: a shortcut in them has one activation only, and is always there with
/// that.
bool is_left_out(const std::vector<Layout>& layouts, const Activation& activation,
                 bool adds_shortcut) {
  const bool is_large = layouts.front().channels == 67;
  return is_large && adds_shortcut != (activation.type == ActType::kElu);
}

}  // namespace

TEST_CASE_TEMPLATE("passes: the bits of every device computing for itself", T,
                   GLUON_SYNCBN_DTYPES) {
  for (const auto& layouts : kDevices) {
    CAPTURE(layouts.front().channels);
    CAPTURE(layouts.size());
    check_step_together(make_workers<T>(layouts, WriteMode::kAdd), 0);
    check_step_together(make_workers<T>(layouts, WriteMode::kAssign), layouts.size() - 1);
  }
}

TEST_CASE_TEMPLATE("passes: the same bits with an activation and a shortcut", T,
                   GLUON_SYNCBN_DTYPES) {
  for (const std::size_t devices : {1u, 2u, 6u}) {
    CAPTURE(devices);
    for (const Activation& activation : kActivations) {
      for (const bool adds_shortcut : {false, true}) {
        if (is_left_out(kDevices[devices], activation, adds_shortcut)) continue;
        auto workers = make_workers<T>(kDevices[devices],
                                       adds_shortcut ? WriteMode::kAdd : WriteMode::kAssign);
        for (auto& w : workers) w.activation = activation, w.adds_shortcut = adds_shortcut;
        check_step_together(std::move(workers), 0);
      }
    }
  }
}

TEST_CASE("passes: devices on threads of their own meet in any order") {
  for (const std::int64_t inner : {20, 600, 8000}) {
    const std::vector<Layout> layouts(3, Layout{2, 67, inner});
    const auto fresh = make_workers<float>(layouts, WriteMode::kAssign);
    auto expected = fresh;
    step_apart(&expected);
    for (int repeat = 0; repeat < 10; ++repeat) {
      auto workers = fresh;
      meet(&workers, make_forward<float>);
      meet(&workers, make_backward<float>);
      check_same(workers, expected);
    }
  }
}

TEST_CASE("passes: without y and gradients, the running statistics still move") {
  for (const std::int64_t inner : {20, 17000}) {
    auto workers = make_workers<float>({{2, 64, inner}, {2, 64, inner}}, WriteMode::kAssign);
    auto expected = workers;
    auto whole = workers;
    step_apart(&whole);
    DevicePasses forward;
    DevicePasses backward;
    for (auto& w : workers) {
      auto work = w.forward();
      work.y = nullptr;
      forward.push_back(cpu::backend()->forward(work, w.call()));
    }
    forward.front()->finish(forward, {});
    for (auto& w : workers) {
      auto work = w.backward();
      work.gradients = {};
      backward.push_back(cpu::backend()->backward(work, w.call()));
    }
    backward.back()->finish(backward, {});
    for (std::size_t i = 0; i < workers.size(); ++i) {
      expected[i].mean = whole[i].mean;
      expected[i].variance = whole[i].variance;
      expected[i].saved.count = whole[i].saved.count;
    }
    check_same(workers, expected);
  }
}

TEST_CASE("passes: a batch without elements moves no running statistics") {
  auto workers = make_workers<float>({{0, 6, 49}, {0, 6, 49}}, WriteMode::kAssign);
  const auto before = workers;
  const auto forward = passes_of(&workers, make_forward<float>);
  forward.front()->finish(forward, {});
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(same_bits(workers[i].mean, before[i].mean));
    CHECK(same_bits(workers[i].variance, before[i].variance));
    CHECK(workers[i].told == std::vector<std::string>{""});
  }
}

TEST_CASE("passes: the running statistics of all devices have moved before a call completes") {
  for (const std::int64_t inner : {20, 600, 17000}) {
    CAPTURE(inner);
    for (const bool with_processes : {false, true}) {
      auto workers =
          make_workers<float>({{2, 64, inner}, {2, 64, inner}, {2, 64, inner}}, WriteMode::kAssign);
      auto expected = workers;
      pass_apart(passes_of(&expected, make_forward<float>));
      std::size_t completed = 0;
      DevicePasses passes;
      for (auto& w : workers) {
        const auto call = w.call();
        call->on_complete = [&](const std::string& error) {
          CHECK(error.empty());
          ++completed;
          for (std::size_t i = 0; i < workers.size(); ++i) {
            CHECK(same_bits(workers[i].mean, expected[i].mean));
            CHECK(same_bits(workers[i].variance, expected[i].variance));
            CHECK(workers[i].saved.count == expected[i].saved.count);
          }
        };
        passes.push_back(cpu::backend()->forward(w.forward(), call));
      }
      std::vector<PartialStatistics> processes;
      if (with_processes) {
        passes[1]->merge(passes, [&](const PartialStatistics& own, const std::string&) {
          processes.push_back(own);
        });
      }
      passes[1]->finish(passes, processes);
      CHECK(completed == 3);
    }
  }
}

TEST_CASE("passes: devices that do not meet keep their arrays, and hear why") {
  auto workers = make_workers<float>({{1, 4, 6}, {2, 4, 6}}, WriteMode::kAssign);
  const auto before = workers;
  for (auto& worker : workers) {
    const auto made = make_forward(&worker);
    made->sum();
    made->fail("nobody came");
  }
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(same_bits(workers[i].mean, before[i].mean));
    CHECK(workers[i].told == std::vector<std::string>{"nobody came"});
    CHECK(same_bits(workers[i].y, before[i].y));
  }
}

}  // namespace gluon_syncbn::tests

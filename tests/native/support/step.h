#pragma once

// Training steps of a layer on CPU or GPU contexts, in rounds as the operator makes them. Several
// processes all live in the process of the test.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "common/dtype.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "cuda/gpu.h"
#include "distributed/process_rounds.h"
#include "norm/variants.h"
#include "support/array.h"
#include "support/arrays.h"
#include "support/inbox.h"
#include "support/oracle.h"
#include "support/ranks.h"
#include "support/values.h"
#include "support/wire.h"
#include "sync/barrier.h"
#include "sync/failed_steps.h"

namespace gluon_syncbn::tests {

/// Waits for passes that are done.
class Finishes {
 public:
  Done one() {
    return [this](const std::string& error) {
      const std::lock_guard<std::mutex> lock(mutex_);
      errors_.push_back(error);
      changed_.notify_all();
    };
  }
  std::vector<std::string> wait(std::size_t number) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [&] { return errors_.size() >= number; });
    return errors_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> errors_;
};

/// One context with its shard of a batch and all arrays of one layer.
template <class T>
struct Shard {
  using P = Real<T>;

  /// Output arrays begin `offset_in` elements after where memory is aligned.
  Shard(const Device& device_in, const Layout& layout, std::uint32_t seed,
        std::size_t offset_in = 0)
      : device(device_in),
        offset(offset_in),
        is_gpu(device.type == "gpu"),
        backend(is_gpu ? cuda::backend_of(device.index, "layer") : cpu::backend()),
        stream(is_gpu
                   ? std::make_unique<cuda::Stream>(cuda::Gpu::of(device.index).stream()->ordinal())
                   : nullptr),
        x(layout, 100, 1, seed),
        dy(layout, 0.1, 1, seed + 1),
        shortcut(layout, 0, 1, seed + 2),
        before(dy.elements.rbegin(), dy.elements.rend()) {}

  int ordinal() const { return stream->ordinal(); }

  DzFrom dz_from() const { return gluon_syncbn::dz_from(activation.type, adds_shortcut, in_place); }
  PassPtr forward_pass(const Done& done) {
    Forward work;
    work.kind = kind();
    work.x = x_array.data();
    work.eps = eps;
    work.gamma = fix_gamma ? nullptr : gamma.data();
    work.beta = beta.data();
    work.activation = activation;
    if (adds_shortcut) work.shortcut = shortcut_array.data();
    work.dz_from = dz_from();
    work.write = write;
    if (wants_outputs) work.y = y.data();
    work.running = {running_mean.data(), running_variance.data(), momentum,
                    momentum ? nullptr : num_batches.data()};
    work.saved = &saved;
    return backend.begin(device.index, work, done);
  }
  PassPtr backward_pass(const Done& done) {
    Backward work;
    work.kind = kind();
    work.dy = dy_array.data();
    work.dz_from = dz_from();
    const BackwardReads reads = reads_of(work.dz_from);
    if (reads.data) work.x = x_array.data();
    if (reads.beta) work.beta = beta.data();
    if (reads.output) work.y = y.data();
    work.saved = saved;
    work.gamma = fix_gamma ? nullptr : gamma.data();
    work.activation = activation;
    if (wants_outputs) {
      work.gradients = {fix_gamma,
                        write,
                        gamma_gradient.data(),
                        write,
                        beta_gradient.data(),
                        write,
                        dx.data(),
                        write,
                        adds_shortcut ? dshortcut.data() : nullptr};
    }
    return backend.begin(device.index, work, done);
  }
  /// All that a step computes.
  auto results() const {
    return std::make_tuple(y.values(), dx.values(), dshortcut.values(), running_mean.values(),
                           running_variance.values(), gamma_gradient.values(),
                           beta_gradient.values(), std::vector<std::int64_t>{saved.count});
  }

  const Device device;
  const std::size_t offset;
  const bool is_gpu;
  const Backend& backend;
  const std::unique_ptr<cuda::Stream> stream;  // of the test; null on the CPU
  const Data<T> x;
  const Data<T> dy;
  const Data<T> shortcut;
  const std::vector<T> before;  ///< what outputs hold before the first step
  // The same on all contexts.
  const std::size_t channels = static_cast<std::size_t>(x.layout.channels);
  const std::vector<P> gammas = as<P>(parameters(x.layout, 2, 5));
  const std::vector<P> betas = as<P>(parameters(x.layout, 0, 6));
  const std::vector<P> averages = as<P>(parameters(x.layout, 2, 7));
  Array<T> x_array{stream.get(), x.elements}, dy_array{stream.get(), dy.elements},
      shortcut_array{stream.get(), shortcut.elements};
  Array<T> y{stream.get(), before, offset}, dx{stream.get(), before, offset},
      dshortcut{stream.get(), before, offset};
  Array<P> gamma{stream.get(), gammas}, beta{stream.get(), betas};
  Array<P> gamma_gradient{stream.get(), betas}, beta_gradient{stream.get(), betas};
  Array<P> running_mean{stream.get(), averages}, running_variance{stream.get(), averages};
  Array<P> num_batches{stream.get(), {0}};
  Saved saved;
  // Settings of the next step.
  std::optional<double> momentum = Options{}.momentum;
  double eps = kEps;
  bool fix_gamma = false;
  Activation activation;
  bool adds_shortcut = false;
  bool in_place = false;
  WriteMode write = WriteMode::kAssign;
  bool wants_outputs = true;  ///< y and the gradients

 private:
  ArrayKind kind() const { return {Type<T>::kDType, x.layout}; }
};

/// The contexts of the tests may outnumber the GPUs.
class ShareGpus {
 public:
  ShareGpus() = default;
  ~ShareGpus() { cuda::Gpu::share(before_); }
  ShareGpus(const ShareGpus&) = delete;
  ShareGpus& operator=(const ShareGpus&) = delete;

 private:
  const bool before_ = cuda::Gpu::share(true);
};

/// The contexts of a process: cpu(i) or gpu(i).
struct Contexts {
  std::string type;
  std::size_t number;
};

/// One layer on the contexts of one process or of several.
template <class T>
class LayerOf {
 public:
  /// The order in which contexts come, on the thread of the test. Empty: on a thread each.
  using Order = std::vector<std::size_t>;

  /// Each context has a shard.
  LayerOf(const std::vector<Contexts>& processes, const std::vector<Layout>& layouts,
          int first_context = 0, const std::string& name = "layer") {
    if (processes.size() > 1) wire = std::make_shared<Wire>(static_cast<int>(processes.size()));
    for (std::size_t process = 0; process < processes.size(); ++process) {
      const auto& [type, number] = processes[process];
      Barrier::Options options;
      if (wire) {
        options.processes = std::make_shared<ProcessRounds>(
            std::make_shared<WiredGroup>(wire, static_cast<int>(process)), name);
      }
      const auto group = std::make_shared<Barrier>(name, number, options);
      groups_.insert(groups_.end(), number, group);
      for (std::size_t i = 0; i < number; ++i) {
        const int index = static_cast<int>(shards.size());
        shards.push_back(std::make_unique<Shard<T>>(Device{type, first_context + index},
                                                    layouts.at(shards.size()), 10 * index));
      }
    }
  }
  /// Of few channels and different sizes.
  LayerOf(const std::vector<Contexts>& processes, std::int64_t inner, int first_context = 0,
          const std::string& name = "layer")
      : LayerOf(processes, uneven(processes, inner), first_context, name) {}

  std::size_t size() const { return shards.size(); }
  /// Calls change(shard) for all shards.
  template <class Change>
  void for_each(const Change& change) {
    for (const auto& shard : shards) change(shard.get());
  }

  /// The next round of a shard.
  At join(std::size_t number) {
    const Shard<T>& shard = *shards[number];
    auto round = tests::join(groups_[number], shard.device);
    if (!wire) return round;
    round.agree(shard.device, {shard.x.layout.channels, "float32", kEps, shard.momentum});
    return round;
  }
  /// The forward pass of the next round, which is returned.
  At forward(std::size_t number, Finishes* finishes) {
    auto round = join(number);
    meet(number, round, finishes,
         [&](Shard<T>* shard) { return shard->forward_pass(finishes->one()); });
    return round;
  }
  void backward(std::size_t number, const At& round, Finishes* finishes) {
    meet(number, round.next_backward(shards[number]->device), finishes,
         [&](Shard<T>* shard) { return shard->backward_pass(finishes->one()); });
  }

  /// A forward and a backward pass. Returns the errors of both passes, or of forward where no
  /// backward can follow.
  std::vector<std::string> step(const Order& order = {}) { return step({this}, order); }

  /// The same of several layers. Every second context takes them in reverse order.
  static std::vector<std::string> step(const std::vector<LayerOf*>& layers,
                                       const Order& order = {}) {
    FailedSteps::instance().drop();  // an error in one step is no error in the next
    const std::size_t contexts = layers.front()->size();
    const auto on_all = [&](const auto& run) {
      Finishes finishes;
      const auto run_all = [&](std::size_t context) {
        auto ordered = layers;
        if (context % 2 == 1) std::reverse(ordered.begin(), ordered.end());
        for (LayerOf* layer : ordered) run(layer, context, &finishes);
      };
      if (order.empty()) run_ranks(contexts, run_all);
      for (const std::size_t context : order) run_all(context);
      return finishes.wait(contexts * layers.size());
    };
    std::map<LayerOf*, std::vector<At>> rounds;
    for (LayerOf* layer : layers) rounds[layer].resize(contexts);
    auto errors = on_all([&](LayerOf* layer, std::size_t context, Finishes* finishes) {
      rounds.at(layer)[context] = layer->forward(context, finishes);
    });
    for (const LayerOf* layer : layers) {
      for (const auto& shard : layer->shards) {
        if (!shard->saved.mean) return errors;
      }
    }
    const auto more = on_all([&](LayerOf* layer, std::size_t context, Finishes* finishes) {
      layer->backward(context, rounds.at(layer)[context], finishes);
    });
    errors.insert(errors.end(), more.begin(), more.end());
    return errors;
  }

  /// After the first step: the results are those of one device with the whole batch. For float.
  void check_one_batch() const {
    Tensor x, dy, shortcut;
    for (const auto& shard : shards) {
      for (const auto& [tensor, data] : {std::pair(&x, &shard->x), std::pair(&dy, &shard->dy),
                                         std::pair(&shortcut, &shard->shortcut)}) {
        tensor->layouts.push_back(data->layout);
        tensor->shards.push_back(data->values());
      }
    }
    const Shard<T>& first = *shards.front();
    const auto exact = [](const auto& values) { return Values(values.begin(), values.end()); };
    const Options options{first.momentum, first.fix_gamma, first.activation};
    Parameters parameters{exact(first.gammas), exact(first.betas), exact(first.averages),
                          exact(first.averages)};
    const Normalized forward =
        normalize(x, options, true, &parameters, first.adds_shortcut ? &shortcut : nullptr);
    const Gradients gradients = differentiate(forward, dy, options);
    const auto check = [](const std::string& what, const auto& actual, const Values& expected,
                          const auto& added, const auto& size_at) {
      check_close(
          what, expected.size(), [&](std::size_t i) { return actual[i]; },
          [&](std::size_t i) { return expected[i] + added(i); },
          [&](std::size_t i) { return 1e-6L * (size_at(i) + std::fabs(added(i))); });
    };
    for (std::size_t s = 0; s < size(); ++s) {
      const Shard<T>& shard = *shards[s];
      CAPTURE(shard.device.name());
      const bool adds = shard.write == WriteMode::kAdd;
      const auto element = [&](std::size_t i) {
        return adds ? Type<T>::value(shard.before[i]) : 0;
      };
      const auto number = [&](std::size_t c) -> long double { return adds ? shard.betas[c] : 0; };
      const auto scale = [&](std::size_t i) {
        return 1 + std::fabs(forward.channels[shard.x.channel(i)].scale());
      };
      const auto count = [&](std::size_t) { return 1 + shard.x.layout.count(); };
      check("y", shard.y.values(), forward.out.shards[s], element, scale);
      check("dx", shard.dx.values(), gradients.x.shards[s], element, scale);
      if (shard.adds_shortcut) {
        check("dshortcut", shard.dshortcut.values(), gradients.shortcut.shards[s], element, scale);
      }
      check("dgamma", shard.gamma_gradient.values(), gradients.gamma[s], number, count);
      check("dbeta", shard.beta_gradient.values(), gradients.beta[s], number, count);
    }
    const auto check_average = [&](const auto& actual, const Values& expected) {
      check(
          "average", actual.values(), expected, [](std::size_t) { return 0.0L; },
          [&](std::size_t c) { return 1 + std::fabs(expected[c]); });
    };
    check_average(first.running_mean, parameters.running_mean);
    check_average(first.running_variance, parameters.running_var);
    check_same_averages();
  }
  void check_same_averages() const {
    for (const auto& shard : shards) {
      CHECK(shard->running_mean.values() == shards.front()->running_mean.values());
      CHECK(shard->running_variance.values() == shards.front()->running_variance.values());
    }
  }

  std::shared_ptr<Wire> wire;  ///< between processes, if there are several
  std::vector<std::unique_ptr<Shard<T>>> shards;

 private:
  static std::vector<Layout> uneven(const std::vector<Contexts>& processes, std::int64_t inner) {
    std::vector<Layout> layouts;
    for (const Contexts& contexts : processes) {
      for (std::size_t i = 0; i < contexts.number; ++i) {
        layouts.push_back({1 + static_cast<std::int64_t>(layouts.size() % 3), 5, inner});
      }
    }
    return layouts;
  }

  /// As the operator.
  template <class Begin>
  void meet(std::size_t number, const At& at, Finishes* finishes, const Begin& begin) {
    Shard<T>* const shard = shards[number].get();
    PassPtr pass;
    try {
      pass = begin(shard);
    } catch (const std::exception& error) {
      at.fail(failed_on(shard->device, error.what()));
      return finishes->one()(error.what());
    }
    at.arrive(shard->device, pass);
  }

  std::vector<std::shared_ptr<Barrier>> groups_;  // of the shards
};

using Layer = LayerOf<float>;

/// What a step returns that has no errors.
inline std::vector<std::string> no_errors(std::size_t number) {
  return std::vector<std::string>(number);
}

}  // namespace gluon_syncbn::tests

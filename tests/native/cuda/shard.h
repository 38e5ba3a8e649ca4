#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "cuda/device_array.h"
#include "cuda/gpu.h"
#include "distributed/process_rounds.h"
#include "norm/activation.h"
#include "support/arrays.h"
#include "support/oracle.h"
#include "support/ranks.h"
#include "support/test_call.h"
#include "support/wire.h"
#include "sync/sync_group.h"

namespace gluon_syncbn::tests {

using Data32 = Data<float>;

/// Waits for passes that are done.
class Finishes {
 public:
  std::function<void(const std::string&)> one() {
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

/// One GPU context with its shard of a batch and all arrays of one layer.
struct Shard {
  Shard(int index, const Layout& layout, std::uint32_t seed)
      : x(layout, 100, 1, seed),
        dy(layout, 0.1, 1, seed + 1),
        device{"gpu", index},
        backend(cuda::backend_of(index, "layer")),
        stream(cuda::Gpu::of(index).stream()->ordinal()),
        zeros(static_cast<std::size_t>(layout.channels), 0.0F),
        ones(zeros.size(), 1.0F),
        on_device_x(&stream, x.elements),
        on_device_dy(&stream, dy.elements),
        y(&stream, std::vector<float>(x.elements.size())),
        dx(&stream, std::vector<float>(x.elements.size())),
        dshortcut(&stream, std::vector<float>(x.elements.size())),
        gamma(&stream, ones),
        beta(&stream, zeros),
        running_mean(&stream, zeros),
        running_variance(&stream, ones),
        gamma_gradient(&stream, zeros),
        beta_gradient(&stream, zeros),
        num_batches(&stream, {0.0F}),
        data{DType::kFloat32, layout} {}

  Data32 x;
  Data32 dy;
  Device device;
  std::shared_ptr<Backend> backend;
  cuda::Stream stream;  // of the test
  std::vector<float> zeros;
  std::vector<float> ones;
  DeviceArray<float> on_device_x, on_device_dy, y, dx, dshortcut, gamma, beta, running_mean,
      running_variance, gamma_gradient, beta_gradient, num_batches;
  Backend::Data data;
  Backend::Saved saved;
  std::optional<double> momentum = 0.9;
  double eps = kEps;
  bool wants_y = true;
  Activation activation;
  bool adds_itself = false;  ///< x is the shortcut as well
  bool in_place = false;     ///< backward has no x

  void set_gamma(std::size_t channel, float value) {
    std::vector<float> values = gamma.download();
    values[channel] = value;
    stream.copy(gamma.data(), values.data(), values.size() * sizeof(float));
    gamma.download();  // which waits
  }

  /// Where memory of a GPU is memory of the host.
  void move_to_cpu() {
    device.type = "cpu";
    backend = cpu::backend();
  }

  std::shared_ptr<Call> call(Finishes* finishes) {
    const auto call = std::make_shared<TestCall>();
    call->on_complete = finishes->one();
    return call;
  }
  std::shared_ptr<DevicePass> forward_pass(Finishes* finishes) {
    Backend::Forward work;
    work.data = data;
    work.x = on_device_x.data();
    work.eps = eps;
    work.gamma = gamma.data();
    work.beta = beta.data();
    work.activation = activation;
    if (adds_itself) work.shortcut = on_device_x.data();
    work.y = wants_y ? y.data() : nullptr;
    work.running = running();
    work.saved = &saved;
    return backend->forward(work, call(finishes));
  }
  std::shared_ptr<DevicePass> backward_pass(Finishes* finishes) {
    Backend::Backward work;
    work.data = data;
    work.dy = on_device_dy.data();
    work.inplace = in_place;
    if (in_place) {
      work.y = y.data();
      work.beta = beta.data();
    } else {
      work.x = on_device_x.data();
    }
    work.saved = saved;
    work.gamma = gamma.data();
    work.activation = activation;
    if (activation.type != ActType::kNone && adds_itself) work.y = y.data();
    if (adds_itself) work.gradients.shortcut = dshortcut.data();
    work.gradients.gamma = gamma_gradient.data();
    work.gradients.beta = beta_gradient.data();
    work.gradients.data = dx.data();
    return backend->backward(work, call(finishes));
  }
  void forward(Meeting* meeting, Finishes* finishes) { meet(meeting, forward_pass(finishes)); }
  void backward(Meeting* meeting, Finishes* finishes) { meet(meeting, backward_pass(finishes)); }
  void meet(Meeting* meeting, const std::shared_ptr<DevicePass>& pass) const {
    try {
      pass->sum();
    } catch (const std::exception& error) {
      meeting->fail(error.what());
      return pass->fail(error.what());
    }
    meeting->arrive(device, pass);
  }
  Backend::Running running() const {
    return {running_mean.data(), running_variance.data(), momentum,
            momentum ? nullptr : num_batches.data()};
  }

  static constexpr double kEps = tests::kEps;
};

/// The contexts of the tests may outnumber the GPUs.
class ShareGpus {
 public:
  ShareGpus() { setenv("GLUON_SYNCBN_SHARE_GPUS", "1", 1); }
  ~ShareGpus() { unsetenv("GLUON_SYNCBN_SHARE_GPUS"); }
  ShareGpus(const ShareGpus&) = delete;
  ShareGpus& operator=(const ShareGpus&) = delete;
};

/// As on a machine whose GPUs do not reach each other; for contexts that are made meanwhile.
class NoPeerAccess {
 public:
  NoPeerAccess() { setenv("MXNET_ENABLE_GPU_P2P", "0", 1); }
  ~NoPeerAccess() { unsetenv("MXNET_ENABLE_GPU_P2P"); }
  NoPeerAccess(const NoPeerAccess&) = delete;
  NoPeerAccess& operator=(const NoPeerAccess&) = delete;
};

/// One layer on the devices of one process or of several, which all live in this one.
class Layer {
 public:
  /// `devices` of each process, which have a shard each.
  Layer(const std::vector<std::size_t>& devices, const std::vector<Layout>& layouts,
        int first_context = 0, const std::string& name = "layer") {
    if (devices.size() > 1) wire = std::make_shared<Wire>(static_cast<int>(devices.size()));
    for (std::size_t process = 0; process < devices.size(); ++process) {
      SyncGroup::Options options;
      if (wire) {
        options.processes = std::make_shared<ProcessRounds>(
            std::make_shared<WiredGroup>(wire, static_cast<int>(process)), name);
      }
      const auto group = std::make_shared<SyncGroup>(name, devices[process], options);
      groups_.insert(groups_.end(), devices[process], group);
    }
    for (const Layout& layout : layouts) {
      const int number = static_cast<int>(shards.size());
      shards.push_back(std::make_unique<Shard>(first_context + number, layout, 10 * number));
    }
  }
  Layer(const std::vector<std::size_t>& devices, std::int64_t inner, int first_context = 0,
        const std::string& name = "layer")
      : Layer(devices,
              uneven(std::accumulate(devices.begin(), devices.end(), std::size_t{0}), inner),
              first_context, name) {}

  /// The next round of a shard.
  std::shared_ptr<Round> join(std::size_t number) {
    const Shard& shard = *shards[number];
    auto round = groups_[number]->join(shard.device);
    if (!wire) return round;
    round->agree(shard.device,
                 {shard.data.layout.channels, "float32", Shard::kEps, shard.momentum});
    return round;
  }

  std::vector<std::string> step() { return step({this}); }

  /// One training step of all layers, on a thread for each context; every second context takes the
  /// layers in reverse order. Errors of both passes, or of forward where no backward can follow.
  static std::vector<std::string> step(std::vector<Layer*> layers) {
    const std::size_t contexts = layers.front()->shards.size();
    const auto on_all = [&](const auto& run) {
      Finishes finishes;
      run_ranks(contexts, [&](std::size_t context) {
        auto ordered = layers;
        if (context % 2 == 1) std::reverse(ordered.begin(), ordered.end());
        for (Layer* layer : ordered) run(layer, context, layer->shards[context].get(), &finishes);
      });
      return finishes.wait(contexts * layers.size());
    };
    std::map<Layer*, std::vector<std::shared_ptr<Round>>> rounds;
    for (Layer* layer : layers) rounds[layer].resize(contexts);
    auto errors = on_all([&](Layer* layer, std::size_t context, Shard* shard, Finishes* finishes) {
      auto& round = rounds.at(layer)[context];
      round = layer->join(context);
      shard->forward(&round->forward_meeting(), finishes);
    });
    for (const Layer* layer : layers) {
      for (const auto& shard : layer->shards) {
        if (!shard->saved.statistics) return errors;
      }
    }
    const auto more =
        on_all([&](Layer* layer, std::size_t context, Shard* shard, Finishes* finishes) {
          const auto& round = rounds.at(layer)[context];
          shard->backward(round->next_backward(shard->device).get(), finishes);
        });
    errors.insert(errors.end(), more.begin(), more.end());
    return errors;
  }

  /// After the first step: outputs, gradients and averages are those of one device with the whole
  /// batch, and averages the same bits on all.
  void check_one_batch() const {
    Tensor x, dy;
    for (const auto& shard : shards) {
      for (const auto& [tensor, data] : {std::pair(&x, &shard->x), std::pair(&dy, &shard->dy)}) {
        tensor->layouts.push_back(data->layout);
        tensor->shards.emplace_back(data->elements.begin(), data->elements.end());
      }
    }
    const Values ones(shards.front()->ones.size(), 1), zeros(ones.size());
    Parameters running{ones, zeros, zeros, ones};
    const Normalized forward = normalize(x, {}, true, &running);
    const Gradients gradients = differentiate(forward, dy, {});
    for (std::size_t s = 0; s < shards.size(); ++s) {
      const Shard& shard = *shards[s];
      const auto y = shard.y.download();
      const auto dx = shard.dx.download();
      long double worst_y = 0;
      long double worst_dx = 0;
      for (std::size_t i = 0; i < y.size(); ++i) {
        const long double size = 1 + forward.inv_std[shard.x.channel(i)];
        worst_y = std::max(worst_y, std::fabs(y[i] - forward.out.shards[s][i]) / size);
        worst_dx = std::max(worst_dx, std::fabs(dx[i] - gradients.x.shards[s][i]) / size);
      }
      CHECK(worst_y <= 1e-6L);
      CHECK(worst_dx <= 1e-6L);
    }
    const auto running_mean = shards.front()->running_mean.download();
    const auto running_variance = shards.front()->running_variance.download();
    for (std::size_t c = 0; c < running_mean.size(); ++c) {
      const long double mean = running.running_mean[c];
      CHECK(std::fabs(running_mean[c] - mean) <= 2e-5L * std::fabs(mean));
      CHECK(std::fabs(running_variance[c] - running.running_var[c]) <= 1e-6L);
    }
    check_same_averages();
  }
  void check_same_averages() const {
    for (const auto& shard : shards) {
      CHECK(shard->running_mean.download() == shards.front()->running_mean.download());
      CHECK(shard->running_variance.download() == shards.front()->running_variance.download());
    }
  }

  std::shared_ptr<Wire> wire;  ///< between processes, if there are several
  std::vector<std::unique_ptr<Shard>> shards;

 private:
  static std::vector<Layout> uneven(std::size_t number, std::int64_t inner) {
    std::vector<Layout> layouts;
    for (std::size_t i = 0; i < number; ++i) {
      layouts.push_back({1 + static_cast<std::int64_t>(i % 3), 5, inner});
    }
    return layouts;
  }

  std::vector<std::shared_ptr<SyncGroup>> groups_;  // of the shards
};

/// What a step returns that has no errors.
inline std::vector<std::string> no_errors(std::size_t number) {
  return std::vector<std::string>(number);
}

}  // namespace gluon_syncbn::tests

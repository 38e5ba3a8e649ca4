// Times the GPU backend on one GPU: each phase of a pass by the GPU's clock, and whole rounds of 1
// to 8 contexts by the host's. "time_gpu small" takes tiny arrays and few rounds, to see that the
// program runs. "time_gpu float32" and "time_gpu float16" (channel-last) take the first two steps
// of a process, which a profiler can watch.

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/error.h"
#include "cuda/backend.h"
#include "cuda/gpu.h"
#include "support/arrays.h"
#include "support/ranks.h"
#include "sync/barrier.h"
#include "timing.h"

namespace gluon_syncbn::tests {
namespace {

struct Case {
  std::int64_t batch, channels, side;
  DType dtype = DType::kFloat32;
  bool channel_last = false;
  ActType activation = ActType::kNone;

  Layout layout() const {
    const std::int64_t pixels = side * side;
    return channel_last ? Layout{batch * pixels, channels, 1} : Layout{batch, channels, pixels};
  }
  std::string name() const {
    constexpr const char* kDTypes[] = {"float32", "float64", "float16"};
    const std::string pixels = std::to_string(side);
    return "(" + std::to_string(batch) + ", " + std::to_string(channels) + ", " + pixels + ", " +
           pixels + ") " + kDTypes[static_cast<int>(dtype)] +
           (channel_last ? " channel-last" : "") + (activation == ActType::kRelu ? " ReLU" : "");
  }
};

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    for (const bool channel_last : {false, true}) {
      cases.push_back({8, 128, 16, dtype, channel_last});
      cases.push_back({16, 256, 60, dtype, channel_last});
      cases.push_back({16, 256, 60, dtype, channel_last, ActType::kRelu});
    }
  }
  // The last norms of ResNet-50 on images of 224 pixels.
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    for (const bool channel_last : {false, true}) {
      cases.push_back({64, 1024, 14, dtype, channel_last});
      cases.push_back({64, 2048, 7, dtype, channel_last});
    }
  }
  cases.push_back({16, 256, 32});
  cases.push_back({16, 256, 32, DType::kFloat32, true});
  cases.push_back({4, 256, 119});  // rows that do not begin at multiples of 16 bytes
  cases.push_back({8, 64, 32, DType::kFloat64});
  // Two images for each GPU.
  cases.insert(cases.end(), {{2, 64, 240}, {2, 256, 60}, {2, 1024, 60}, {2, 2048, 60}});
  for (const std::int64_t channels : {256, 2048}) {
    cases.push_back({2, channels, 60, DType::kFloat16});
  }
  cases.push_back({2, 512, 30, DType::kFloat16});
  cases.push_back({2, 65, 3, DType::kFloat16, true});  // few rows, which are taken as runs
  return cases;
}

/// An array of normal numbers, which repeat so late that no two channels are alike.
std::unique_ptr<cuda::Memory> normal_array(int ordinal, DType dtype, std::int64_t size,
                                           double mean) {
  return dispatch(dtype, [&](auto types) {
    using T = typename decltype(types)::Data;
    constexpr std::size_t kPrime = 8191;
    Normal normal(1);
    std::vector<T> values(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = i < kPrime ? Type<T>::of(normal(mean, 0.3)) : values[i - kPrime];
    }
    const std::size_t bytes = values.size() * sizeof(T);
    auto memory = std::make_unique<cuda::Memory>(cuda::Memory::Place::kDevice, ordinal, bytes);
    cuda::Stream stream(ordinal);
    stream.copy(memory->data(), values.data(), bytes);
    stream.synchronize();
    return memory;
  });
}

/// A layer on one context, with arrays of its own.
class Layer {
 public:
  Layer(int index, const Case& given)
      : device_{"gpu", index}, case_(given), backend_(cuda::backend_of(index, "layer")) {
    const int ordinal = cuda::Gpu::of(index).stream()->ordinal();
    const std::int64_t size = case_.channels * case_.layout().count();
    for (auto& array : data_) array = normal_array(ordinal, case_.dtype, size, 0.1);
    const DType dtype = case_.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    for (auto& array : parameters_) array = normal_array(ordinal, dtype, case_.channels, 2);
  }

  const Device& device() const { return device_; }

  PassPtr forward(const Done& done) {
    auto work = begun<Forward>();
    work.eps = 1e-5;
    work.y = data_[kY]->data();
    work.running = {parameters_[2]->data(), parameters_[3]->data(), 0.9, nullptr};
    work.saved = &saved_;
    return backend_.begin(device_.index, work, done);
  }

  PassPtr backward(const Done& done) const {
    auto work = begun<Backward>();
    work.dy = data_[kDy]->data();
    work.saved = saved_;
    work.gradients.gamma = parameters_[4]->data();
    work.gradients.beta = parameters_[5]->data();
    work.gradients.data = data_[kDx]->data();
    return backend_.begin(device_.index, work, done);
  }

  std::size_t bytes() const { return data_[kX]->bytes(); }
  void copy(cuda::Stream* stream) const {
    stream->copy(data_[kY]->data(), data_[kX]->data(), bytes());
  }

 private:
  enum Array { kX, kDy, kY, kDx };

  template <class Work>
  Work begun() const {
    Work work;
    work.kind = {case_.dtype, case_.layout()};
    work.x = data_[kX]->data();
    work.gamma = parameters_[0]->data();
    work.beta = parameters_[1]->data();
    work.activation.type = case_.activation;
    return work;
  }

  const Device device_;
  const Case case_;
  const Backend& backend_;
  std::array<std::unique_ptr<cuda::Memory>, 4> data_;
  std::array<std::unique_ptr<cuda::Memory>, 6> parameters_;
  Saved saved_;
};

/// The calls of a thread, which other threads complete.
class Calls {
 public:
  Done one() {
    return [this](const std::string& error) {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++completed_;
      if (!error.empty()) error_ = error;
      changed_.notify_one();
    };
  }
  /// Returns when `number` more calls are complete. Throws the error of one that failed.
  void wait(std::size_t number) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return completed_ >= number; });
    completed_ -= number;
    if (!error_.empty()) throw Error(error_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t completed_ = 0;
  std::string error_;
};

/// Times what the first context puts on its stream. Copies keep the GPU busy until all is there, so
/// that launching is not timed.
class Stopwatch {
 public:
  using Call = std::function<void()>;

  explicit Stopwatch(bool small)
      : bytes_(small ? 1 << 12 : 64 << 20), most_copies_(small ? 2 : 2048) {}

  cuda::Stream* stream() const { return stream_; }

  /// The microseconds of the work that launch(lap) puts on the stream: before the first lap(),
  /// between laps, and after the last lap(). `wait` returns when all work is done.
  std::vector<double> time(const std::function<void(const Call& lap)>& launch, const Call& wait) {
    for (int i = 0; i < copies_; ++i) stream_->copy(to_.data(), from_.data(), bytes_);
    copied_.record(stream_);
    std::deque<TimedEvent> laps;
    const auto lap = [&] { laps.emplace_back().record(*stream_); };
    lap();
    launch(lap);
    lap();
    const bool too_late = copied_.is_reached();
    wait();
    stream_->synchronize();
    if (too_late && copies_ < most_copies_) {
      copies_ *= 2;
      return time(launch, wait);
    }
    is_exact_ = is_exact_ && !too_late;
    std::vector<double> times;
    for (std::size_t i = 1; i < laps.size(); ++i) {
      times.push_back(laps[i].microseconds_since(laps[i - 1]));
    }
    return times;
  }

  /// Whether launching was never timed.
  bool is_exact() const { return is_exact_; }

 private:
  const cuda::OnDevice on_device_{0};
  const std::size_t bytes_;
  const int most_copies_;
  int copies_ = 1;
  bool is_exact_ = true;
  cuda::Stream* const stream_ = cuda::Gpu::of(0).stream();
  cuda::Event copied_{0};
  const cuda::Memory to_{cuda::Memory::Place::kDevice, 0, bytes_};
  const cuda::Memory from_{cuda::Memory::Place::kDevice, 0, bytes_};
};

using Layers = std::vector<std::unique_ptr<Layer>>;

/// Launches a pass of each layer. With `by_layer`, each layer sums and finishes before the next
/// one, as in training. Otherwise all layers sum first, and call `lap` before they finish.
void launch_passes(const Layers& layers, bool forward, bool by_layer, Calls* calls,
                   const Stopwatch::Call& lap) {
  Passes passes;
  for (const auto& layer : layers) {
    passes.push_back(forward ? layer->forward(calls->one()) : layer->backward(calls->one()));
    if (by_layer) finish_alone(passes.back());
  }
  if (by_layer) return;
  lap();
  for (const auto& pass : passes) finish_alone(pass);
}

/// Prints a row for each phase, and for each direction layer by layer.
void time_phases(const Case& given, bool small) {
  // Several layers, so that no phase finds its arrays in the cache.
  Layers layers;
  std::size_t bytes = 0;
  while (layers.size() < 2 || (!small && layers.size() < 16 && bytes < 64 << 20)) {
    layers.push_back(std::make_unique<Layer>(0, given));
    bytes += layers.back()->bytes();
  }
  Stopwatch stopwatch(small);
  Calls calls;
  std::array<std::vector<double>, 7> times;  // of the phases, the directions and of copies
  const auto keep = [&](std::size_t first, const std::vector<double>& found) {
    for (std::size_t i = 0; i < found.size(); ++i) {
      times[first + i].push_back(found[i] / static_cast<double>(layers.size()));
    }
  };
  for (int repeat = 0; repeat < (small ? 1 : 9); ++repeat) {
    for (const bool by_layer : {false, true}) {
      for (const bool forward : {true, false}) {
        const auto launch = [&](const auto& lap) {
          launch_passes(layers, forward, by_layer, &calls, lap);
        };
        keep(by_layer ? (forward ? 4 : 5) : (forward ? 0 : 2),
             stopwatch.time(launch, [&] { calls.wait(layers.size()); }));
      }
    }
    const auto copy = [&](const auto&) {
      for (const auto& layer : layers) layer->copy(stopwatch.stream());
    };
    keep(6, stopwatch.time(copy, [] {}));
  }
  const double kilobytes = static_cast<double>(layers.front()->bytes()) / 1e3;
  const double copy_rate = 2 * kilobytes / quantile(times[6], 0.5);  // GB/s
  constexpr const char* kPhases[] = {"moments",        "normalization",    "gradient sums",
                                     "input gradient", "forward by layer", "backward by layer"};
  constexpr int kPasses[] = {1, 2, 2, 3, 3, 5};  // over the array, at least
  for (std::size_t i = 0; i < 6; ++i) {
    const double median = quantile(times[i], 0.5);
    const double rate = kPasses[i] * kilobytes / median;
    std::printf("| %s | %zu | %s | %.1f (%.1f..%.1f) | %.0f | %.2f |%s\n", given.name().c_str(),
                layers.size(), kPhases[i], median, quantile(times[i], 0.25),
                quantile(times[i], 0.75), rate, rate / copy_rate,
                stopwatch.is_exact() ? "" : " with launching");
  }
}

/// Prints a row for each number of contexts that share the GPU.
void time_rounds(const Case& given, const std::vector<std::size_t>& numbers, std::size_t steps) {
  std::printf("\n| contexts | step of %s, us: p50 | p99 | CPU, us |\n| --- | --- | --- | --- |\n",
              given.name().c_str());
  for (const std::size_t contexts : numbers) {
    const auto group = std::make_shared<Barrier>("layer", contexts);
    std::vector<double> times;
    std::clock_t cpu = 0;
    run_ranks(contexts, [&](std::size_t rank) {
      Layer layer(static_cast<int>(rank), given);
      Calls calls;
      const auto pass = [&](const Barrier::Place& place, const PassPtr& own) {
        group->arrive(place, layer.device(), own);
        calls.wait(1);
      };
      for (std::size_t i = 0; i < 2 * steps; ++i) {  // half of them to warm up
        const auto begin = std::chrono::steady_clock::now();
        if (rank == 0 && i == steps) cpu = std::clock();
        const auto forward = group->join(layer.device());
        pass(forward, layer.forward(calls.one()));
        pass(group->next_backward(forward.round, layer.device()), layer.backward(calls.one()));
        const std::chrono::duration<double, std::micro> step =
            std::chrono::steady_clock::now() - begin;
        if (rank == 0 && i >= steps) times.push_back(step.count());
      }
      if (rank == 0) cpu = std::clock() - cpu;
    });
    std::printf("| %zu | %.0f | %.0f | %.0f |\n", contexts, quantile(times, 0.5),
                quantile(times, 0.99),
                1e6 * static_cast<double>(cpu) / CLOCKS_PER_SEC / static_cast<double>(steps));
  }
}

/// Two steps of a layer.
void run_once(DType dtype) {
  Layers layers;
  const bool channel_last = dtype == DType::kFloat16;
  layers.push_back(
      std::make_unique<Layer>(0, Case{16, 256, 60, dtype, channel_last, ActType::kRelu}));
  Calls calls;
  for (const char* step : {"first", "second"}) {
    const auto begin = std::chrono::steady_clock::now();
    for (const bool forward : {true, false}) {
      launch_passes(layers, forward, true, &calls, {});
      calls.wait(1);
    }
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    std::printf("%s step: %.1f ms\n", step, time.count());
  }
}

void run(bool small) {
  setenv("CUDA_VISIBLE_DEVICES", "0", 0);
  cuda::Gpu::share(true);
  std::printf("%s\n", cuda::describe_devices().c_str());
  time_rounds({2, 64, 8}, {1, 2, 4, 8}, small ? 3 : 2000);
  time_rounds({2, 2048, 8}, {small ? 2u : 8u}, small ? 3 : 500);
  if (!small) time_rounds({16, 256, 120}, {1, 2, 8}, 50);  // kernels that take longer than waits
  std::printf("\n| case | arrays | phase | us (quartiles) | GB/s | of a copy's |\n%s\n",
              "| --- | --- | --- | --- | --- | --- |");
  for (Case given : cases()) {
    if (small) {
      given.channels = 3;
      given.side = 9;
    }
    time_phases(given, small);
  }
}

}  // namespace
}  // namespace gluon_syncbn::tests

int main(int count, char** words) {
  try {
    const std::string what = count == 2 ? words[1] : "";
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a program that is ended leaves its rows
    if (what == "float32") {
      gluon_syncbn::tests::run_once(gluon_syncbn::DType::kFloat32);
    } else if (what == "float16") {
      gluon_syncbn::tests::run_once(gluon_syncbn::DType::kFloat16);
    } else {
      gluon_syncbn::tests::run(what == "small");
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "time_gpu: %s\n", error.what());
    return 1;
  }
}

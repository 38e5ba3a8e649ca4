#include "bridge/gpu_bridge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bridge/device.h"
#include "common/dtype.h"
#include "common/error.h"
#include "common/error_of.h"
#include "cuda/kernels/phases.h"
#include "support/arrays.h"

using namespace gluon_syncbn;
using tests::Type;

namespace {

constexpr int kOrdinal = 0;

std::unique_ptr<cuda::Memory> allocate(std::size_t bytes) {
  return std::make_unique<cuda::Memory>(cuda::Memory::Place::kDevice, kOrdinal, bytes);
}

/// A stream, and what its kernels need.
class Context : public cuda::Workspace {
 public:
  cuda::Stream* stream() { return &stream_; }

  /// For the next kernel, which may use the room of the one before.
  cuda::Workspace* workspace() {
    used_rooms_ = 0;
    return this;
  }
  double* doubles(std::size_t number) override {
    if (used_rooms_ == rooms_.size()) rooms_.emplace_back();
    return static_cast<double*>(at_least(&rooms_[used_rooms_++], number * sizeof(double)));
  }
  std::uint32_t* counters(std::size_t number) override {
    return static_cast<std::uint32_t*>(at_least(&counters_, number * sizeof(std::uint32_t)));
  }
  cuda::Claims claims(std::size_t number) override {
    void* states = at_least(&turns_, number * sizeof(cuda::Claims::State));
    return {static_cast<cuda::Claims::State*>(states), ++last_turn_};
  }

 private:
  void* at_least(std::unique_ptr<cuda::Memory>* memory, std::size_t bytes) {
    if (!*memory || (*memory)->bytes() < bytes) {
      stream_.synchronize();
      *memory = allocate(bytes);
      stream_.zero((*memory)->data(), bytes);
    }
    return (*memory)->data();
  }

  cuda::Stream stream_{kOrdinal};
  std::vector<std::unique_ptr<cuda::Memory>> rooms_;
  std::size_t used_rooms_ = 0;
  std::unique_ptr<cuda::Memory> counters_;
  std::unique_ptr<cuda::Memory> turns_;
  cuda::Claims::State last_turn_ = 0;
};

/// The GPU, for as long as the process lives: CUDA may end before destructors run.
struct Gpu {
  std::vector<std::unique_ptr<Context>> contexts;
  std::string name = cuda::describe_devices();
  bridge::Timer timer{kOrdinal};
  const std::size_t delay_bytes = 4 * static_cast<std::size_t>(bridge::cache_bytes(kOrdinal));
  std::unique_ptr<cuda::Memory> delay_from = allocate(delay_bytes);
  std::unique_ptr<cuda::Memory> delay_to = allocate(delay_bytes);

  Context& context(std::size_t index) {
    while (contexts.size() <= index) contexts.push_back(std::make_unique<Context>());
    return *contexts[index];
  }
  cuda::Stream* first() { return context(0).stream(); }
  void finish() {
    for (const auto& context : contexts) context->stream()->synchronize();
  }
  /// What comes next on one stream is behind all work so far on the other.
  static void put_behind(cuda::Stream* stream, cuda::Stream* other) {
    if (stream == other) return;
    cuda::Event event(kOrdinal);
    event.record(other);
    stream->wait(event);
  }
};

Gpu& gpu() {
  static Gpu& gpu = *new Gpu();
  return gpu;
}

}  // namespace

struct GpuBridgeLayer {
  virtual ~GpuBridgeLayer() = default;
  virtual void run(int phase) = 0;
  virtual double error() = 0;

  enum Index { kX, kDy, kY, kDx, kGamma, kBeta, kMean, kVariance, kGammaGradient, kBetaGradient };
  std::array<std::unique_ptr<cuda::Memory>, 10> arrays;
};

namespace {

/// That of one array from what is expected.
class Deviation {
 public:
  void see(long double found, long double expected) {
    const long double difference = std::fabs(found - expected);
    greatest_ = std::max(greatest_, std::isnan(difference) ? HUGE_VALL : difference);
    scale_ = std::max(scale_, std::fabs(expected));
  }
  double relative() const { return static_cast<double>(greatest_ / scale_); }

 private:
  long double greatest_ = 0;
  long double scale_ = 1e-30L;
};

/// An array on the GPU of normal numbers, which repeat so late that no two channels are alike.
template <class T>
std::unique_ptr<cuda::Memory> normal(std::size_t size, double mean, double deviation, int seed) {
  std::mt19937 generator(static_cast<std::mt19937::result_type>(seed));
  std::normal_distribution<double> distribution;
  std::vector<T> values(size);
  constexpr std::size_t kPrime = 8191;
  for (std::size_t i = 0; i < size; ++i) {
    values[i] =
        i < kPrime ? Type<T>::of(mean + deviation * distribution(generator)) : values[i - kPrime];
  }
  auto memory = allocate(size * sizeof(T));
  gpu().first()->copy(memory->data(), values.data(), size * sizeof(T));
  gpu().first()->synchronize();
  return memory;
}

template <class T>
class Layer : public GpuBridgeLayer {
 public:
  using R = Real<T>;

  Layer(std::int64_t batch, std::int64_t channels, std::int64_t pixels, bool channel_last,
        int contexts, double mean, int seed, double eps, double momentum)
      : channels_(channels),
        count_(batch * pixels),
        inner_(channel_last ? 1 : pixels),
        eps_(eps),
        momentum_(momentum) {
    if (contexts < 1 || contexts > cuda::kMostDevices) {
      throw Error("contexts=" + std::to_string(contexts) + ": expected 1 to " +
                  std::to_string(cuda::kMostDevices));
    }
    const auto size = static_cast<std::size_t>(count_ * channels);
    const auto parameters = static_cast<std::size_t>(channels);
    const std::size_t all_parameters = parameters * static_cast<std::size_t>(contexts);
    arrays = {normal<T>(size, mean, 1, 4 * seed),
              normal<T>(size, 0.1, 1, 4 * seed + 1),
              allocate(size * sizeof(T)),
              allocate(size * sizeof(T)),
              normal<R>(parameters, 1, 1, 4 * seed + 2),
              normal<R>(parameters, 0, 1, 4 * seed + 3),
              normal<R>(all_parameters, 0, 0, 0),
              normal<R>(all_parameters, 1, 0, 0),
              allocate(all_parameters * sizeof(R)),
              allocate(all_parameters * sizeof(R))};
    for (int i = 0; i < contexts; ++i) {
      const std::int64_t begin = batch * i / contexts;
      const std::int64_t outer = batch * (i + 1) / contexts - begin;
      const Layout layout =
          channel_last ? Layout{outer * pixels, channels, 1} : Layout{outer, channels, pixels};
      devices_.push_back(std::make_unique<Device>(*this, i, begin * channels * pixels, layout));
    }
  }

  void run(int phase) override {
    for (const auto& device : devices_) {
      switch (phase) {
        case 0:
          moments(device.get());
          break;
        case 1:
          normalize(device.get());
          break;
        case 2:
          gradient_sums(device.get());
          break;
        case 3:
          input_gradient(device.get());
          break;
        case 4:
          normalize(device.get(), kRelu);
          break;
        case 5:
          gradient_sums(device.get(), kRelu);
          break;
        case 6:
          input_gradient(device.get(), kRelu);
          break;
        default:
          throw Error("phase=" + std::to_string(phase) + ": expected 0 to 6");
      }
    }
  }

  double error() override {
    const auto x = download<T>(kX);
    const auto dy = download<T>(kDy);
    const auto y = download<T>(kY);
    const auto dx = download<T>(kDx);
    std::array<std::vector<double>, 10> parameters;
    for (int i = kGamma; i <= kBetaGradient; ++i) parameters[i] = download<R>(i);
    const Layout layout{count_ / inner_, channels_, inner_};
    const auto number = static_cast<long double>(count_);
    std::array<Deviation, 10> deviations;
    for (std::int64_t c = 0; c < channels_; ++c) {
      const auto for_samples = [&](const auto& visit) {
        for (std::int64_t outer = 0; outer < layout.outer; ++outer) {
          const std::int64_t begin = (outer * channels_ + c) * inner_;
          for (std::int64_t i = begin; i < begin + inner_; ++i) visit(static_cast<std::size_t>(i));
        }
      };
      long double mean = 0;
      long double variance = 0;
      long double sum = 0;
      long double product = 0;
      for_samples([&](std::size_t i) { mean += x[i] / number; });
      for_samples([&](std::size_t i) {
        variance += (x[i] - mean) * (x[i] - mean) / number;
        sum += dy[i];
        product += dy[i] * (x[i] - mean);
      });
      const long double inv_std = 1 / std::sqrt(variance + static_cast<long double>(eps_));
      const auto channel = static_cast<std::size_t>(c);
      const long double factor = parameters[kGamma][channel] * inv_std;
      for_samples([&](std::size_t i) {
        const long double centered = x[i] - mean;
        deviations[kY].see(y[i], centered * factor + parameters[kBeta][channel]);
        deviations[kDx].see(dx[i], factor * (dy[i] - sum / number -
                                             centered * inv_std * inv_std * product / number));
      });
      long double gamma_gradient = 0;
      long double beta_gradient = 0;
      for (std::size_t i = channel; i < parameters[kMean].size(); i += parameters[kGamma].size()) {
        const auto moved = [&](long double old, long double now) {
          return static_cast<long double>(momentum_) * old +
                 (1 - static_cast<long double>(momentum_)) * now;
        };
        deviations[kMean].see(parameters[kMean][i], moved(0, mean));
        deviations[kVariance].see(parameters[kVariance][i], moved(1, variance));
        gamma_gradient += parameters[kGammaGradient][i];
        beta_gradient += parameters[kBetaGradient][i];
      }
      deviations[kGammaGradient].see(gamma_gradient, product * inv_std);
      deviations[kBetaGradient].see(beta_gradient, sum);
    }
    double greatest = 0;
    for (const Deviation& one : deviations) greatest = std::max(greatest, one.relative());
    return greatest;
  }

 private:
  static constexpr Activation kRelu{ActType::kRelu, 0};

  struct Device {
    Device(const Layer& layer, int index, std::int64_t first_element, const Layout& layout_in)
        : context(&gpu().context(static_cast<std::size_t>(index))), layout(layout_in) {
      for (int i = 0; i <= kDx; ++i) data[i] = layer.begin<T>(i) + first_element;
      for (int i = kGamma; i <= kBetaGradient; ++i) {
        parameters[i] = layer.begin<R>(i) + (i > kBeta ? index * layout.channels : 0);
      }
    }

    Context* const context;
    const Layout layout;
    std::array<T*, kDx + 1> data{};
    std::array<R*, kBetaGradient + 1> parameters{};
    /// The four parts below.
    const std::unique_ptr<cuda::Memory> memory =
        allocate(9 * sizeof(double) * static_cast<std::size_t>(layout.channels));
    const std::unique_ptr<cuda::Memory> normalizations =
        allocate(sizeof(cuda::StoredAffine<R>) * static_cast<std::size_t>(layout.channels));
    cuda::Event moments_written{kOrdinal};
    cuda::Event sums_written{kOrdinal};

    double* part(int begin) const {
      return static_cast<double*>(memory->data()) + begin * layout.channels;
    }
    double* moments() const { return part(0); }
    double* own_sums() const { return part(2); }
    double* all_sums() const { return part(4); }
    double* statistics() const { return part(6); }
    cuda::Gate<T> gate(const Activation& activation) const {
      return {activation, nullptr, static_cast<cuda::StoredAffine<R>*>(normalizations->data())};
    }
  };

  template <class DType>
  std::vector<double> download(int index) const {
    std::vector<DType> values(arrays.at(static_cast<std::size_t>(index))->bytes() / sizeof(DType));
    gpu().finish();
    gpu().first()->copy(values.data(), begin<DType>(index), values.size() * sizeof(DType));
    gpu().finish();
    std::vector<double> numbers(values.size());
    std::transform(values.begin(), values.end(), numbers.begin(),
                   [](DType value) { return static_cast<double>(Type<DType>::value(value)); });
    return numbers;
  }

  template <class DType>
  DType* begin(int index) const {
    return static_cast<DType*>(arrays.at(static_cast<std::size_t>(index))->data());
  }

  void moments(Device* device) {
    cuda::moments(device->data[kX], device->layout, device->context->workspace(), device->moments(),
                  device->context->stream());
    device->moments_written.record(device->context->stream());
  }

  void normalize(Device* device, const Activation& activation = {}) {
    cuda::ForwardSource<R> source{};
    source.messages = messages(*device, &Device::moments, &Device::moments_written);
    source.channels = channels_;
    source.eps = eps_;
    double* statistics = device->statistics();
    source.statistics = {statistics, statistics + channels_, statistics + 2 * channels_};
    source.averages.mean = device->parameters[kMean];
    source.averages.variance = device->parameters[kVariance];
    source.averages.momentum = momentum_;
    source.averages.channels = channels_;
    source.gamma = device->parameters[kGamma];
    source.beta = device->parameters[kBeta];
    cuda::normalize(
        device->data[kX], device->layout, source, WriteMode::kAssign, device->data[kY],
        device->context->workspace(), device->context->stream(),
        {activation, nullptr, static_cast<cuda::StoredAffine<R>*>(device->normalizations->data())});
  }

  void gradient_sums(Device* device, const Activation& activation = {}) {
    cuda::gradient_sums(device->data[kDy], device->data[kX], device->layout, device->statistics(),
                        device->context->workspace(), device->own_sums(), device->context->stream(),
                        device->gate(activation));
    device->sums_written.record(device->context->stream());
  }

  void input_gradient(Device* device, const Activation& activation = {}) {
    cuda::BackwardSource<R> source{};
    source.messages = messages(*device, &Device::own_sums, &Device::sums_written);
    source.own = device->own_sums();
    source.channels = channels_;
    source.mean = device->statistics();
    source.inv_std = device->statistics() + 2 * channels_;
    source.gamma = device->parameters[kGamma];
    source.count = static_cast<double>(count_);
    source.sums = device->all_sums();
    source.gamma_gradient = {device->parameters[kGammaGradient], false};
    source.beta_gradient = {device->parameters[kBetaGradient], false};
    cuda::input_gradient(device->data[kDy], device->data[kX], device->layout, source,
                         WriteMode::kAssign, device->data[kDx], device->context->workspace(),
                         device->context->stream(), device->gate(activation));
  }

  /// Those of all devices, for a kernel that comes next on the stream of one.
  cuda::Messages messages(const Device& reader, double* (Device::*values)() const,
                          cuda::Event Device::* written) {
    cuda::Messages messages{};
    for (const auto& device : devices_) {
      if (device.get() != &reader) reader.context->stream()->wait(device.get()->*written);
      messages.values[messages.size] = (device.get()->*values)();
      messages.counts[messages.size] = device->layout.count();
      ++messages.size;
    }
    return messages;
  }

  const std::int64_t channels_;
  const std::int64_t count_;
  const std::int64_t inner_;
  const double eps_;
  const double momentum_;
  std::vector<std::unique_ptr<Device>> devices_;
};

}  // namespace

const char* gpu_bridge_device(const char** name, void** stream, std::int64_t* cache_bytes) {
  return error_of([=] {
    *name = gpu().name.c_str();
    *stream = bridge::native_stream(*gpu().first());
    *cache_bytes = bridge::cache_bytes(kOrdinal);
  });
}

const char* gpu_bridge_copy(void* to, const void* from, std::int64_t bytes) {
  return error_of([=] { gpu().first()->copy(to, from, static_cast<std::size_t>(bytes)); });
}
const char* gpu_bridge_delay(int copies) {
  return error_of([copies] {
    const Gpu& one = gpu();
    for (int i = 0; i < copies; ++i) {
      gpu().first()->copy(one.delay_to->data(), one.delay_from->data(), one.delay_bytes);
    }
  });
}
const char* gpu_bridge_finish() {
  return error_of([] { gpu().finish(); });
}

const char* gpu_bridge_open(std::int64_t batch, std::int64_t channels, std::int64_t pixels,
                            int element, int channel_last, int contexts, double mean, int seed,
                            double eps, double momentum, GpuBridgeLayer** layer) {
  return error_of([=] {
    dispatch(static_cast<DType>(element), [&](auto types) {
      using T = typename decltype(types)::Data;
      *layer = std::make_unique<Layer<T>>(batch, channels, pixels, channel_last != 0, contexts,
                                          mean, seed, eps, momentum)
                   .release();
    });
  });
}
const char* gpu_bridge_array(GpuBridgeLayer* layer, int index, void** begin, std::int64_t* bytes) {
  return error_of([=] {
    const cuda::Memory& array = *layer->arrays.at(static_cast<std::size_t>(index));
    *begin = array.data();
    *bytes = static_cast<std::int64_t>(array.bytes());
  });
}
const char* gpu_bridge_run(GpuBridgeLayer* layer, int phase) {
  return error_of([=] { layer->run(phase); });
}
const char* gpu_bridge_error(GpuBridgeLayer* layer, double* error) {
  return error_of([=] { *error = layer->error(); });
}
const char* gpu_bridge_close(GpuBridgeLayer* layer) {
  return error_of([layer] {
    gpu().finish();
    delete layer;
  });
}

const char* gpu_bridge_begin() {
  return error_of([] {
    gpu().timer.begin(gpu().first());
    for (const auto& context : gpu().contexts) Gpu::put_behind(context->stream(), gpu().first());
  });
}
const char* gpu_bridge_end(double* seconds, int* queued) {
  return error_of([=] {
    for (const auto& context : gpu().contexts) Gpu::put_behind(gpu().first(), context->stream());
    gpu().timer.end(gpu().first());
    *queued = !gpu().timer.has_begun();
    *seconds = gpu().timer.seconds();
  });
}

#include "core/cuda/backend_cuda.h"

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "core/cuda/channel_bodies.h"
#include "core/cuda/gpu.h"
#include "core/cuda/part.h"
#include "core/cuda/phases.h"
#include "core/error.h"

namespace gluon_syncbn::cuda {
namespace {

struct GpuStatistics : Statistics {
  explicit GpuStatistics(Pool<Memory>::Lease memory_in, std::int64_t channels_in)
      : memory(std::move(memory_in)), channels(channels_in) {}

  Pool<Memory>::Lease memory;
  std::int64_t channels;

  double* mean() const { return static_cast<double*>(memory->data()); }
  double* variance() const { return mean() + channels; }
  double* inv_std() const { return mean() + 2 * channels; }

  static const GpuStatistics& of(const Statistics& statistics) {
    return static_cast<const GpuStatistics&>(statistics);
  }
};

/// Room that is given back when the work that uses it is on the stream: what uses it next comes
/// behind that.
class Rooms {
 public:
  explicit Rooms(Gpu* gpu) : gpu_(gpu) {}

  double* take(std::size_t doubles) {
    taken_.push_back(gpu_->memory(doubles));
    return static_cast<double*>(taken_.back()->data());
  }
  Scratch scratch() {
    return [this](std::size_t doubles) { return take(doubles); };
  }

 private:
  Gpu* gpu_;
  std::vector<Pool<Memory>::Lease> taken_;
};

std::size_t message_size(const Layout& layout) {
  return 2 * static_cast<std::size_t>(layout.channels);
}

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(Gpu* gpu) : gpu_(gpu) {}

  bool keeps_caller_busy() const override { return false; }

  Moments moments(const Data& data, const void* x) override {
    const auto part = std::make_shared<Part>(gpu_, message_size(data.layout), data.layout.count());
    Rooms rooms(gpu_);
    with_types(data.element, [&](auto types) {
      using T = typename decltype(types)::Data;
      cuda::moments(static_cast<const T*>(x), data.layout, rooms.scratch(), part->message.values(),
                    gpu_->stream());
    });
    part->message.written->record(gpu_->stream());
    Moments moments;
    moments.count = part->count;
    moments.remote = {part};
    return moments;
  }

  StatisticsPtr batch_statistics(const Data& data, const Moments& merged, double eps) override {
    const auto statistics = new_statistics(data);
    const std::int64_t channels = data.layout.channels;
    Rooms rooms(gpu_);
    for_each(channels,
             BatchStatistics{messages(merged.remote, &rooms), channels, eps, statistics->mean(),
                             statistics->variance(), statistics->inv_std()});
    return statistics;
  }

  StatisticsPtr running_statistics(const Data& data, const void* running_mean,
                                   const void* running_variance, double eps) override {
    const auto statistics = new_statistics(data);
    with_types(data.element, [&](auto types) {
      using P = typename decltype(types)::Parameter;
      for_each(data.layout.channels,
               cuda::RunningStatistics<P>{static_cast<const P*>(running_mean),
                                          static_cast<const P*>(running_variance), eps,
                                          statistics->mean(), statistics->inv_std()});
    });
    return statistics;
  }

  void move_averages(const Data& data, const Statistics& batch,
                     const RunningStatistics& running) override {
    const auto& statistics = GpuStatistics::of(batch);
    with_types(data.element, [&](auto types) {
      using P = typename decltype(types)::Parameter;
      P* num_batches = static_cast<P*>(running.num_batches);
      for_each(statistics.channels,
               MoveAverages<P>{statistics.mean(), statistics.variance(),
                               running.momentum.value_or(0), num_batches,
                               static_cast<P*>(running.mean), static_cast<P*>(running.variance)});
      if (num_batches) for_each(1, CountBatch<P>{num_batches});
    });
  }

  void normalize(const Data& data, const void* x, const Statistics& given, const void* gamma,
                 const void* beta, Write write, void* y) override {
    const auto& statistics = GpuStatistics::of(given);
    with_types(data.element, [&](auto types) {
      using T = typename decltype(types)::Data;
      using P = typename decltype(types)::Parameter;
      cuda::normalize(static_cast<const T*>(x), data.layout,
                      AffineSource<P>{statistics.mean(), statistics.inv_std(),
                                      static_cast<const P*>(gamma), static_cast<const P*>(beta)},
                      write, static_cast<T*>(y), gpu_->stream());
    });
  }

  GradientSums gradient_sums(const Data& data, const void* dy, const void* x,
                             const Statistics& statistics) override {
    const auto part = std::make_shared<Part>(gpu_, message_size(data.layout), data.layout.count());
    Rooms rooms(gpu_);
    with_types(data.element, [&](auto types) {
      using T = typename decltype(types)::Data;
      cuda::gradient_sums(static_cast<const T*>(dy), static_cast<const T*>(x), data.layout,
                          GpuStatistics::of(statistics).mean(), rooms.scratch(),
                          part->message.values(), gpu_->stream());
    });
    part->message.written->record(gpu_->stream());
    GradientSums sums;
    sums.remote = {part};
    return sums;
  }

  void parameter_gradients(const Data& data, const GradientSums& own, const Statistics& given,
                           const ParameterGradients& gradients) override {
    if (!gradients.gamma && !gradients.beta) return;
    const auto& statistics = GpuStatistics::of(given);
    with_types(data.element, [&](auto types) {
      using P = typename decltype(types)::Parameter;
      for_each(statistics.channels,
               cuda::ParameterGradients<P>{
                   Part::of(own.remote.front()).message.values(), statistics.inv_std(),
                   statistics.channels, gradients.fix_gamma, gradients.write_gamma == Write::kAdd,
                   gradients.write_beta == Write::kAdd, static_cast<P*>(gradients.gamma),
                   static_cast<P*>(gradients.beta)});
    });
  }

  void input_gradient(const Data& data, const void* dy, const void* x, const Statistics& given,
                      const GradientSums* all_devices, std::int64_t count, const void* gamma,
                      Write write, void* dx) override {
    const auto& statistics = GpuStatistics::of(given);
    Rooms rooms(gpu_);
    const double* sums = all_devices ? sum(data, all_devices->remote, &rooms) : nullptr;
    with_types(data.element, [&](auto types) {
      using T = typename decltype(types)::Data;
      using P = typename decltype(types)::Parameter;
      const GradientSource<P> source{statistics.mean(),
                                     statistics.inv_std(),
                                     static_cast<const P*>(gamma),
                                     sums,
                                     sums ? sums + data.layout.channels : nullptr,
                                     static_cast<double>(count)};
      cuda::input_gradient(static_cast<const T*>(dy), static_cast<const T*>(x), data.layout, source,
                           write, static_cast<T*>(dx), gpu_->stream());
    });
  }

  void finish(std::function<void(const std::string& error)> done) override {
    gpu_->when_done(std::move(done));
  }

 private:
  template <class Each>
  void for_each(std::int64_t size, const Each& each) {
    const ForEach<Each> body{each, size};
    launch(body, body.blocks(), gpu_->stream());
  }

  std::shared_ptr<GpuStatistics> new_statistics(const Data& data) {
    const std::int64_t channels = data.layout.channels;
    return std::make_shared<GpuStatistics>(gpu_->memory(3 * static_cast<std::size_t>(channels)),
                                           channels);
  }

  /// For a kernel that comes next, and so behind what writes them.
  Messages messages(const RemoteParts& parts, Rooms* rooms) {
    if (parts.size() > static_cast<std::size_t>(kMostDevices)) {
      throw Error("num_devices=" + std::to_string(parts.size()) + " where at most " +
                  std::to_string(kMostDevices) + " GPU contexts can meet");
    }
    Messages messages{};
    for (const auto& each : parts) {
      const Part& part = Part::of(each);
      messages.values[messages.size] = part.read_by(gpu_, rooms->scratch());
      messages.counts[messages.size] = part.count;
      ++messages.size;
    }
    return messages;
  }

  /// The sums of one device or of all processes as they are, or those of all devices added up.
  const double* sum(const Data& data, const RemoteParts& parts, Rooms* rooms) {
    if (parts.size() == 1) return Part::of(parts.front()).read_by(gpu_, rooms->scratch());
    double* sums = rooms->take(message_size(data.layout));
    for_each(2 * data.layout.channels, SumMessages{messages(parts, rooms), sums});
    return sums;
  }

  Gpu* const gpu_;
};

}  // namespace

std::shared_ptr<Backend> backend_of(int index, const std::string& layer) {
  try {
    return std::make_shared<CudaBackend>(&Gpu::of(index));
  } catch (const Error& error) {
    throw Error(layer + ": " + error.what());
  }
}

}  // namespace gluon_syncbn::cuda

#include "cuda/backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "cuda/gpu.h"
#include "cuda/kernels/channels.h"
#include "cuda/kernels/phases.h"
#include "cuda/part.h"

namespace gluon_syncbn::cuda {
namespace {

/// Statistics on a GPU, and what normalize() makes them from.
struct GpuStatistics : Statistics {
  GpuStatistics(Pool<Memory>::Lease memory_in, std::int64_t channels_in, double eps_in)
      : memory(std::move(memory_in)), channels(channels_in), eps(eps_in) {}

  Pool<Memory>::Lease memory;
  std::int64_t channels;
  double eps;
  RemoteParts moments = {};  // none: the running statistics
  const void* running_mean = nullptr;
  const void* running_variance = nullptr;

  StatisticsArrays arrays() const {
    auto* begin = static_cast<double*>(memory->data());
    return {begin, begin + channels, begin + 2 * channels};
  }

  static const GpuStatistics& of(const Statistics& statistics) {
    return static_cast<const GpuStatistics&>(statistics);
  }
};

/// Room that is given back when the work that uses it is on the stream: what uses it next comes
/// behind that.
class Rooms : public Workspace {
 public:
  explicit Rooms(Gpu* gpu) : gpu_(gpu) {}

  double* doubles(std::size_t number) override {
    taken_.push_back(gpu_->memory(number));
    return static_cast<double*>(taken_.back()->data());
  }
  std::uint32_t* counters(std::size_t number) override { return gpu_->counters(number); }
  Turns turns(std::size_t number) override { return gpu_->turns(number); }

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
    Moments moments;
    moments.count = data.layout.count();
    moments.remote = {new_part(data, [&](auto types, double* message, Workspace* workspace) {
      using T = typename decltype(types)::Data;
      cuda::moments(static_cast<const T*>(x), data.layout, workspace, message, gpu_->stream());
    })};
    return moments;
  }

  StatisticsPtr batch_statistics(const Data& data, const Moments& merged, double eps) override {
    const auto statistics = new_statistics(data, eps);
    statistics->moments = merged.remote;
    return statistics;
  }

  StatisticsPtr running_statistics(const Data& data, const void* running_mean,
                                   const void* running_variance, double eps) override {
    const auto statistics = new_statistics(data, eps);
    statistics->running_mean = running_mean;
    statistics->running_variance = running_variance;
    return statistics;
  }

  void move_averages(const Data& data, const Statistics& batch,
                     const RunningStatistics& running) override {
    const auto& statistics = GpuStatistics::of(batch);
    with_types(data.element, [&](auto types) {
      using P = typename decltype(types)::Parameter;
      const Channels<MoveAverages<P>> body{
          {statistics.arrays(), averages<P>(running, statistics.channels)}, statistics.channels};
      launch(body, body.blocks(), gpu_->stream());
    });
  }

  void normalize(const Data& data, const void* x, const Statistics& given, const void* gamma,
                 const void* beta, Write write, void* y, const Update& update) override {
    const auto& statistics = GpuStatistics::of(given);
    const auto own =
        std::find_if(update.batches.begin(), update.batches.end(),
                     [&](const StatisticsPtr& batch) { return batch.get() == &given; });
    for (auto at = update.batches.begin(); at != own; ++at) {
      move_averages(data, **at, update.running);
    }
    with_types(data.element, [&](auto types) {
      using T = typename decltype(types)::Data;
      using P = typename decltype(types)::Parameter;
      Rooms rooms(gpu_);
      ForwardSource<P> source{};
      source.messages = messages(statistics.moments, &rooms);
      source.running_mean = static_cast<const P*>(statistics.running_mean);
      source.running_variance = static_cast<const P*>(statistics.running_variance);
      source.channels = statistics.channels;
      source.eps = statistics.eps;
      source.statistics = statistics.arrays();
      if (own != update.batches.end()) {
        source.averages = averages<P>(update.running, statistics.channels);
      }
      source.gamma = static_cast<const P*>(gamma);
      source.beta = static_cast<const P*>(beta);
      cuda::normalize(static_cast<const T*>(x), data.layout, source, write, static_cast<T*>(y),
                      &rooms, gpu_->stream());
    });
    if (own == update.batches.end()) return;
    for (auto at = own + 1; at != update.batches.end(); ++at) {
      move_averages(data, **at, update.running);
    }
  }

  GradientSums gradient_sums(const Data& data, const void* dy, const void* x,
                             const Statistics& statistics) override {
    GradientSums sums;
    sums.remote = {new_part(data, [&](auto types, double* message, Workspace* workspace) {
      using T = typename decltype(types)::Data;
      cuda::gradient_sums(static_cast<const T*>(dy), static_cast<const T*>(x), data.layout,
                          GpuStatistics::of(statistics).arrays().mean, workspace, message,
                          gpu_->stream());
    })};
    return sums;
  }

  void gradients(const Data& data, const void* dy, const void* x, const Statistics& given,
                 const GradientSums& own, const GradientSums* all_devices, std::int64_t count,
                 const void* gamma, const Gradients& gradients) override {
    if (!gradients.gamma && !gradients.beta && !gradients.data) return;
    const auto& statistics = GpuStatistics::of(given);
    with_types(data.element, [&](auto types) {
      using T = typename decltype(types)::Data;
      using P = typename decltype(types)::Parameter;
      Rooms rooms(gpu_);
      BackwardSource<P> source{};
      if (all_devices) source.messages = messages(all_devices->remote, &rooms);
      source.own = Part::of(own.remote.front()).message.values();
      source.channels = statistics.channels;
      source.mean = statistics.arrays().mean;
      source.inv_std = statistics.arrays().inv_std;
      source.gamma = static_cast<const P*>(gamma);
      source.count = static_cast<double>(count);
      source.sums = rooms.doubles(message_size(data.layout));
      source.fix_gamma = gradients.fix_gamma;
      source.gamma_gradient = {static_cast<P*>(gradients.gamma),
                               gradients.write_gamma == Write::kAdd};
      source.beta_gradient = {static_cast<P*>(gradients.beta), gradients.write_beta == Write::kAdd};
      cuda::input_gradient(static_cast<const T*>(dy), static_cast<const T*>(x), data.layout, source,
                           gradients.write_data, static_cast<T*>(gradients.data), &rooms,
                           gpu_->stream());
    });
  }

  void finish(std::function<void(const std::string& error)> done) override {
    RemoteParts read;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      read.swap(read_);
    }
    gpu_->when_done(
        [read = std::move(read), done = std::move(done)](const std::string& error) mutable {
          const std::string found = error.empty() ? error_in(read) : error;
          read.clear();  // what comes next may need such memory
          done(found);
        });
  }

 private:
  /// What a GPU that fails leaves of its message is no number, and a peer that has read it hears
  /// of it only here.
  static std::string error_in(const RemoteParts& read) {
    for (const auto& each : read) {
      const auto& written = Part::of(each).message.written;
      if (!written) continue;
      try {
        written->synchronize();  // which this GPU has waited for
      } catch (const std::exception& error) {
        return error.what();
      }
    }
    return "";
  }

  /// The part of this device, whose message `fill` puts on the stream.
  template <class Fill>
  std::shared_ptr<const Part> new_part(const Data& data, const Fill& fill) {
    const auto part = std::make_shared<Part>(gpu_, message_size(data.layout), data.layout.count());
    Rooms rooms(gpu_);
    with_types(data.element, [&](auto types) { fill(types, part->message.values(), &rooms); });
    part->message.written->record(gpu_->stream());
    return part;
  }

  std::shared_ptr<GpuStatistics> new_statistics(const Data& data, double eps) {
    const std::int64_t channels = data.layout.channels;
    return std::make_shared<GpuStatistics>(gpu_->memory(3 * static_cast<std::size_t>(channels)),
                                           channels, eps);
  }

  template <class P>
  Averages<P> averages(const RunningStatistics& running, std::int64_t channels) {
    return {static_cast<P*>(running.mean),
            static_cast<P*>(running.variance),
            running.momentum.value_or(0),
            static_cast<P*>(running.num_batches),
            gpu_->counters(1),
            channels};
  }

  /// For a kernel that comes next, and so behind what writes them.
  Messages messages(const RemoteParts& parts, Rooms* rooms) {
    const auto room = [rooms](std::size_t doubles) { return rooms->doubles(doubles); };
    if (parts.size() > static_cast<std::size_t>(kMostDevices)) {
      throw Error("num_devices=" + std::to_string(parts.size()) + " where at most " +
                  std::to_string(kMostDevices) + " GPU contexts can meet");
    }
    Messages messages{};
    for (const auto& each : parts) {
      const Part& part = Part::of(each);
      messages.values[messages.size] = part.read_by(gpu_, room);
      messages.counts[messages.size] = part.count;
      ++messages.size;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    read_.insert(read_.end(), parts.begin(), parts.end());
    return messages;
  }

  Gpu* const gpu_;
  std::mutex mutex_;
  RemoteParts read_;  // since finish() was called last
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

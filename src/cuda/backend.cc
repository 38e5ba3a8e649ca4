#include "cuda/backend.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/running_statistics_lock.h"
#include "common/error.h"
#include "cuda/gpu.h"
#include "cuda/kernels/merge_devices.h"
#include "cuda/kernels/phases.h"
#include "cuda/partial_statistics.h"
#include "norm/invertible.h"

namespace gluon_syncbn::cuda {
namespace {

/// Statistics in GPU memory, which the forward merge writes. The normalizations lie before the
/// statistics. The outputs and the activations of backward read the normalizations.
struct GpuStatistics : Statistics {
  GpuStatistics(Gpu* gpu, const Backend::Data& data)
      : channels(data.layout.channels),
        normalization_size(dispatch(
            data.dtype,
            [](auto types) { return sizeof(StoredAffine<typename decltype(types)::Parameter>); })),
        memory(gpu->memory((3 + normalization_size / sizeof(double)) *
                           static_cast<std::size_t>(channels))) {}

  std::int64_t channels;
  std::size_t normalization_size;
  Pool<Memory>::Lease memory;

  StatisticsArrays arrays() const {
    auto* begin = static_cast<double*>(memory->data()) +
                  normalization_size / sizeof(double) * static_cast<std::size_t>(channels);
    return {begin, begin + channels, begin + 2 * channels};
  }
  template <class P>
  StoredAffine<P>* normalizations() const {
    return static_cast<StoredAffine<P>*>(memory->data());
  }

  static const GpuStatistics& of(const Statistics& statistics) {
    return static_cast<const GpuStatistics&>(statistics);
  }
};

/// Returns a function that leases scratch memory. The caller keeps the function until it has
/// launched the kernels. Later kernels of the stream may then reuse the memory.
Scratch scratch_of(Gpu* gpu) {
  const auto taken = std::make_shared<std::vector<Pool<Memory>::Lease>>();
  return [gpu, taken](std::size_t doubles) {
    taken->push_back(gpu->memory(doubles));
    return static_cast<double*>(taken->back()->data());
  };
}

/// Launches the merge, which computes `statistics`, and the outputs. If `messages` is null, it
/// takes the running statistics of `work`. With `moves_running` it updates them.
void launch_forward(Gpu* gpu, const Backend::Forward& work, const GpuStatistics& statistics,
                    const Messages* messages, bool moves_running) {
  dispatch(work.data.dtype, [&](auto types) {
    using T = typename decltype(types)::Data;
    using P = typename decltype(types)::Parameter;
    ForwardMerge<P> merge{};
    if (messages) {
      merge.messages = *messages;
    } else {
      merge.running_mean = static_cast<const P*>(work.running.mean);
      merge.running_variance = static_cast<const P*>(work.running.variance);
    }
    merge.channels = statistics.channels;
    merge.eps = work.eps;
    merge.statistics = statistics.arrays();
    if (moves_running) merge.averages = work.running.averages<P>();
    merge.gamma = static_cast<const P*>(work.gamma);
    merge.beta = static_cast<const P*>(work.beta);
    merge.normalizations = statistics.normalizations<P>();
    cuda::normalize(static_cast<const T*>(work.x), work.data.layout, merge, work.write,
                    static_cast<T*>(work.y), scratch_of(gpu), gpu->stream(),
                    {work.activation, static_cast<const T*>(work.shortcut)});
  });
}

/// **Every wait is for work that is launched already.** So no round can wait forever, in any order
/// of rounds and with any number of streams on the hardware queues of a GPU.
/// Streams wait for no other stream. Before it launches the merge, a thread waits for the sums of
/// the peers, which they launched before they arrived; at last it waits for the outputs.
class GpuPass : public DevicePass, public std::enable_shared_from_this<GpuPass> {
 public:
  GpuPass(Gpu* gpu, Layout layout, std::shared_ptr<Call> call)
      : gpu_(gpu), layout_(layout), call_(std::move(call)) {}

  void sum() final {
    const OnDevice on_device(gpu_->stream()->ordinal());
    own_ = std::make_shared<GpuPartialStatistics>(gpu_, message_size(), layout_.count());
    sum_into({own_->values(), layout_.channels}, scratch_of(gpu_));
    own_->written();
  }

  void merge(const DevicePasses& passes, OnMerged then) final {
    gpu_->post([self = shared_from_this(), all = all_of(passes), then = std::move(then)]() mutable {
      PartialStatistics merged;
      std::string error;
      try {
        std::vector<PartialStatistics> copies;
        for (const auto& each : all) {
          each->wait();
          copies.push_back(each->copy());
        }
        merged = self->merged(copies);
      } catch (const std::exception& caught) {
        error = caught.what();
      }
      all.clear();  // `then` may lease the memory of these statistics
      then(merged, error);
    });
  }

  void finish(const DevicePasses& passes, const std::vector<PartialStatistics>& processes) final {
    std::vector<GpuPartialStatisticsPtr> all;
    try {
      all = processes.empty()
                ? all_of(passes)
                : std::vector{std::make_shared<GpuPartialStatistics>(gpu_, merged(processes))};
    } catch (const std::exception& error) {
      for (const auto& pass : passes) pass->fail(error.what());
      return;
    }
    if (passes.size() == 1) return launch_rest(all);
    // The lock gives all GPUs one order of rounds, so shared running statistics stay equal.
    const auto lock = lock_results();
    for (const auto& pass : passes) {
      GpuPass& each = of(pass);
      each.gpu_->post([self = each.shared_from_this(), all] { self->launch_rest(all); });
    }
  }

  void fail(const std::string& error) final { complete_when_done(error); }

 protected:
  Gpu* gpu() const { return gpu_; }
  const Layout& layout() const { return layout_; }
  std::size_t message_size() const { return 2 * static_cast<std::size_t>(layout_.channels); }
  const double* own() const { return own_->values(); }

  /// Returns the addresses and counts of the statistics in `all`. `read_` keeps the statistics
  /// until the pass is done.
  static Messages messages(const std::vector<GpuPartialStatisticsPtr>& all) {
    if (all.size() > static_cast<std::size_t>(kMostDevices)) {
      throw Error("num_devices=" + std::to_string(all.size()) + " where at most " +
                  std::to_string(kMostDevices) + " GPU contexts can meet");
    }
    Messages messages{};
    for (const auto& each : all) messages.add(each->values(), each->count());
    return messages;
  }

 private:
  /// Launches the kernels that sum into `message`.
  virtual void sum_into(const Message& message, const Scratch& scratch) = 0;
  /// Merges partial statistics on the host.
  virtual PartialStatistics merged(const std::vector<PartialStatistics>& parts) const = 0;
  /// Launches the merge and the outputs.
  virtual void compute(const std::vector<GpuPartialStatisticsPtr>& all) = 0;
  /// Returns the lock that finish() holds while it posts to the threads of all GPUs. Backward needs
  /// no lock, because it moves no running statistics.
  virtual std::unique_lock<std::mutex> lock_results() const { return {}; }
  /// Returns the error that kernels found in the arguments, or "". Called after all of the work.
  virtual std::string fault() { return ""; }

  static GpuPass& of(const std::shared_ptr<DevicePass>& pass) {
    return static_cast<GpuPass&>(*pass);
  }

  static std::vector<GpuPartialStatisticsPtr> all_of(const DevicePasses& passes) {
    std::vector<GpuPartialStatisticsPtr> all;
    for (const auto& pass : passes) all.push_back(of(pass).own_);
    return all;
  }

  void launch_rest(const std::vector<GpuPartialStatisticsPtr>& all) {
    std::string error;
    std::optional<OnDevice> on_device;
    read_ = all;
    try {
      on_device.emplace(gpu_->stream()->ordinal());
      for (const auto& each : all) {
        if (each != own_) each->wait();
      }
      compute(all);
    } catch (const std::exception& caught) {
      error = caught.what();
    }
    complete_when_done(error);
  }

  void complete_when_done(const std::string& error) {
    gpu_->when_done([self = shared_from_this(), error](const std::string& found) {
      // A fault in the arguments may be the consequence of a failed operation, so it comes last.
      std::string first = error.empty() ? found : error;
      const std::string fault = self->fault();
      if (first.empty()) first = fault;
      // Frees the memory for the next pass. After fail(), `read_` is empty and `own_` stays: a
      // message to other processes may still need its copy.
      if (!self->read_.empty()) self->own_.reset();
      self->read_.clear();
      std::exchange(self->call_, nullptr)->complete(first);
    });
  }

  Gpu* const gpu_;
  const Layout layout_;
  std::shared_ptr<Call> call_;  // null after it is complete
  GpuPartialStatisticsPtr own_;
  std::vector<GpuPartialStatisticsPtr> read_;
};

class ForwardPass : public GpuPass {
 public:
  ForwardPass(Gpu* gpu, const Backend::Forward& work, std::shared_ptr<Call> call)
      : GpuPass(gpu, work.data.layout, std::move(call)), work_(work) {}

 private:
  void sum_into(const Message& message, const Scratch& scratch) override {
    dispatch(work_.data.dtype, [&](auto types) {
      using T = typename decltype(types)::Data;
      cuda::moments(static_cast<const T*>(work_.x), layout(), scratch, message, gpu()->stream());
    });
  }

  PartialStatistics merged(const std::vector<PartialStatistics>& parts) const override {
    return merge_packed<Moments>(parts).packed();
  }

  void compute(const std::vector<GpuPartialStatisticsPtr>& all) override {
    const auto statistics = std::make_shared<GpuStatistics>(gpu(), work_.data);
    std::int64_t count = 0;
    for (const auto& each : all) count += each->count();
    *work_.saved = {statistics, count};
    const Messages messages = GpuPass::messages(all);
    launch_forward(gpu(), work_, *statistics, &messages, count > 0);
  }

  std::unique_lock<std::mutex> lock_results() const override { return lock_running_statistics(); }

  const Backend::Forward work_;
};

class BackwardPass : public GpuPass {
 public:
  BackwardPass(Gpu* gpu, const Backend::Backward& work, std::shared_ptr<Call> call)
      : GpuPass(gpu, work.data.layout, std::move(call)),
        work_(work),
        statistics_(GpuStatistics::of(*work_.saved.statistics)) {}

 private:
  void sum_into(const Message& message, const Scratch& scratch) override {
    dispatch(work_.data.dtype, [&](auto types) {
      using T = typename decltype(types)::Data;
      cuda::gradient_sums(static_cast<const T*>(work_.dy), static_cast<const T*>(work_.x), layout(),
                          statistics_.arrays().mean, scratch, message, gpu()->stream(), gate<T>());
    });
  }

  PartialStatistics merged(const std::vector<PartialStatistics>& parts) const override {
    return merge_packed<GradientSums>(parts).packed();
  }

  void compute(const std::vector<GpuPartialStatisticsPtr>& all) override {
    const Backend::Gradients& gradients = work_.gradients;
    if (!work_.inplace && !gradients.gamma && !gradients.beta && !gradients.data &&
        !gradients.shortcut) {
      return;
    }
    if (work_.inplace) {
      not_invertible_ = gpu()->host_memory(1);
      *first_not_invertible() = kNone;
    }
    dispatch(work_.data.dtype, [&](auto types) {
      using T = typename decltype(types)::Data;
      using P = typename decltype(types)::Parameter;
      BackwardMerge<P> merge{};
      if (work_.saved.count > 0) merge.messages = messages(all);
      merge.own = own();
      merge.channels = statistics_.channels;
      merge.mean = statistics_.arrays().mean;
      merge.inv_std = statistics_.arrays().inv_std;
      merge.gamma = static_cast<const P*>(work_.gamma);
      merge.count = static_cast<double>(work_.saved.count);
      if (work_.inplace) {
        merge.check = {Invertible::of(work_.data.dtype, work_.activation), first_not_invertible()};
      }
      merge.gamma_gradient_is_zero = work_.gamma_gradient_is_zero();
      merge.gamma_gradient = work_.gamma_gradient<P>();
      merge.beta_gradient = work_.beta_gradient<P>();
      cuda::input_gradient(static_cast<const T*>(work_.dy), static_cast<const T*>(work_.x),
                           layout(), merge, gradients.write_data, static_cast<T*>(gradients.data),
                           scratch_of(gpu()), gpu()->stream(), gate<T>(), gradients.write_shortcut,
                           static_cast<T*>(gradients.shortcut));
    });
  }

  std::string fault() override {
    const auto memory = std::move(not_invertible_);
    if (!memory) return "";
    const std::uint32_t channel = *static_cast<const std::uint32_t*>(memory->data());
    if (channel == kNone) return "";
    return dispatch(work_.data.dtype, [&](auto types) {
      using P = typename decltype(types)::Parameter;
      try {
        const auto here = gpu()->host_memory(2);
        auto* const parameters = static_cast<P*>(here->data());
        parameters[0] = 1;
        parameters[1] = 0;
        const auto get = [&](P* to, const void* from) {
          if (from) gpu()->stream()->copy(to, static_cast<const P*>(from) + channel, sizeof(P));
        };
        get(&parameters[0], work_.gamma);
        get(&parameters[1], work_.beta);
        gpu()->stream()->synchronize();
        return Invertible::of(work_.data.dtype, work_.activation)
            .error(channel, static_cast<double>(parameters[0]), static_cast<double>(parameters[1]));
      } catch (const std::exception& error) {
        return std::string(error.what());
      }
    });
  }

  static constexpr std::uint32_t kNone = ~0u;
  std::uint32_t* first_not_invertible() const {
    return static_cast<std::uint32_t*>(not_invertible_->data());
  }

  template <class T>
  Gate<T> gate() const {
    using P = Real<T>;
    return {work_.activation,
            static_cast<const T*>(work_.y),
            statistics_.normalizations<P>(),
            work_.inplace,
            statistics_.arrays().inv_std,
            static_cast<const P*>(work_.gamma),
            static_cast<const P*>(work_.beta)};
  }

  const Backend::Backward work_;
  const GpuStatistics& statistics_;
  Pool<Memory>::Lease not_invertible_;  // the first channel that is not invertible
};

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(Gpu* gpu) : gpu_(gpu) {}

  std::shared_ptr<DevicePass> forward(const Forward& work, std::shared_ptr<Call> call) override {
    load(work);
    return std::make_shared<ForwardPass>(gpu_, work, std::move(call));
  }

  std::shared_ptr<DevicePass> backward(const Backward& work, std::shared_ptr<Call> call) override {
    return std::make_shared<BackwardPass>(gpu_, work, std::move(call));
  }

  void inference(const Forward& work, std::shared_ptr<Call> call) override {
    // With use_global_stats, a backward pass may follow.
    if (gpu_->has_peers()) load(work);
    const OnDevice on_device(gpu_->stream()->ordinal());
    const auto statistics = std::make_shared<GpuStatistics>(gpu_, work.data);
    *work.saved = {statistics, 0};
    launch_forward(gpu_, work, *statistics, nullptr, false);
    gpu_->when_done([call = std::move(call)](const std::string& error) { call->complete(error); });
  }

  void fill_with_nan(void* array, std::size_t bytes) override {
    gpu_->stream()->fill(array, kNanByte, bytes);
    gpu_->stream()->synchronize();
  }

 private:
  void load(const Forward& work) const {
    load_kernels({work.data.dtype, work.data.layout, work.activation.type, work.shortcut != nullptr,
                  work.inplace, work.running.num_batches != nullptr, gpu_->has_peers()},
                 gpu_->stream()->ordinal());
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

#include "cuda/passes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "cuda/fetch_all.h"
#include "cuda/invertible_check.h"
#include "cuda/kernels/phases.h"
#include "cuda/normalization.h"
#include "cuda/partial_statistics.h"
#include "cuda/statistics.h"
#include "norm/moments.h"

namespace gluon_syncbn::cuda {
namespace {

/// In the order of devices or, if other processes have come in, one of all of them.
using AllPartialStatistics = std::vector<GpuPartialStatisticsPtr>;

/// From so many on, each device launches on a thread of its own: one thread that lets all of them
/// wait for all others would take longer than it takes to wake the others.
constexpr std::size_t kManyDevices = 4;

class GpuPass : public DevicePass, public std::enable_shared_from_this<GpuPass> {
 public:
  using Post = std::function<void(std::function<void()> task)>;

  GpuPass(Gpu* gpu, Layout layout, Post post, Backend::Done done)
      : gpu_(gpu), layout_(layout), post_(std::move(post)), done_(std::move(done)) {}

  void begin(const std::function<bool()>&) final {
    own_ = std::make_shared<GpuPartialStatistics>(gpu_, message_size(), layout_.count());
    StreamWorkspace workspace(gpu_);
    sum(own_->values(), &workspace);
    own_->written();
  }

  void reduce(const DevicePasses& passes, Then then) final {
    fetch_all(all_of(passes),
              [self = shared_from_this(), then = std::move(then)](
                  const std::vector<PartialStatistics>& copies, const std::string& error) {
                if (error.empty()) {
                  then(self->merge(copies), "");
                } else {
                  then({}, error);
                }
              });
  }

  void finish(const DevicePasses& passes, const std::vector<PartialStatistics>& processes) final {
    AllPartialStatistics all;
    std::string error;
    try {
      all = processes.empty() ? all_of(passes) : to_gpus(processes);
    } catch (const std::exception& caught) {
      error = caught.what();
    }
    for (const auto& pass : passes) {
      if (pass.get() == this) continue;
      passes.size() < kManyDevices ? of(pass).finish_own(all, error)
                                   : of(pass).finish_later(all, error);
    }
    finish_own(all, error);
  }

  void fail(const std::string& error) final {
    // The partial statistics stay: the message with them may still wait for its turn.
    tell_when_done(error, [] {});
  }

 protected:
  Gpu* gpu() const { return gpu_; }
  const Layout& layout() const { return layout_; }
  std::size_t message_size() const { return 2 * static_cast<std::size_t>(layout_.channels); }
  const double* own() const { return own_->values(); }

  /// For a kernel that comes next, and so behind what writes them. They are kept until this pass is
  /// done.
  Messages messages(const AllPartialStatistics& all, StreamWorkspace* workspace) {
    if (all.size() > static_cast<std::size_t>(kMostDevices)) {
      throw Error("num_devices=" + std::to_string(all.size()) + " where at most " +
                  std::to_string(kMostDevices) + " GPU contexts can meet");
    }
    const auto room = [workspace](std::size_t doubles) { return workspace->doubles(doubles); };
    Messages messages{};
    for (const auto& each : all) {
      messages.values[messages.size] = each->read_by(gpu_, room);
      messages.counts[messages.size] = each->count();
      ++messages.size;
    }
    return messages;
  }

 private:
  /// Puts the kernel of the partial statistics on the stream.
  virtual void sum(double* message, StreamWorkspace* workspace) = 0;
  virtual PartialStatistics merge(const std::vector<PartialStatistics>& parts) const = 0;
  /// Puts all that is left on the stream. `error` tells why nothing can be computed, or is "".
  virtual void compute(const AllPartialStatistics& all, const std::string& error) = 0;
  /// Called when all work is done: what kernels have found wrong with the arguments, or "".
  virtual std::string fault() { return ""; }

  static GpuPass& of(const std::shared_ptr<DevicePass>& pass) {
    return static_cast<GpuPass&>(*pass);
  }

  static AllPartialStatistics all_of(const DevicePasses& passes) {
    AllPartialStatistics all;
    for (const auto& pass : passes) all.push_back(of(pass).own_);
    return all;
  }

  AllPartialStatistics to_gpus(const std::vector<PartialStatistics>& processes) const {
    return {std::make_shared<const GpuPartialStatistics>(gpu_, merge(processes))};
  }

  void finish_later(const AllPartialStatistics& all, const std::string& error) {
    try {
      post_([self = shared_from_this(), all, error] { self->finish_own(all, error); });
    } catch (const std::exception& caught) {
      finish_own(all, error.empty() ? caught.what() : error);
    }
  }

  void finish_own(const AllPartialStatistics& all, std::string error) {
    read_ = all;
    try {
      const OnDevice on_device(gpu_->stream()->ordinal());
      compute(all, error);
    } catch (const std::exception& caught) {
      if (error.empty()) error = caught.what();
    }
    tell_when_done(error, [this] { own_.reset(); });
  }

  /// Calls `release` before, because what comes next may need such memory.
  template <class Release>
  void tell_when_done(const std::string& error, const Release& release) {
    gpu_->when_done([self = shared_from_this(), error, release](const std::string& found) {
      // What was computed from a failed operation is its consequence.
      std::string first = error.empty() ? found : error;
      for (const auto& each : self->read_) {
        if (first.empty()) first = each->error();
      }
      const std::string fault = self->fault();
      if (first.empty()) first = fault;
      self->read_.clear();
      release();
      std::exchange(self->done_, nullptr)(first);
    });
  }

  Gpu* const gpu_;
  const Layout layout_;
  const Post post_;
  Backend::Done done_;
  std::shared_ptr<const GpuPartialStatistics> own_;
  AllPartialStatistics read_;
};

class ForwardPass : public GpuPass {
 public:
  ForwardPass(Gpu* gpu, Backend::Forward pass)
      : GpuPass(gpu, pass.data.layout, std::move(pass.post), std::move(pass.done)),
        pass_(std::move(pass)) {}

 private:
  void sum(double* message, StreamWorkspace* workspace) override {
    dispatch(pass_.data.dtype, [&](auto types) {
      using T = typename decltype(types)::Data;
      cuda::moments(static_cast<const T*>(pass_.x), layout(), workspace, message, gpu()->stream());
    });
  }

  PartialStatistics merge(const std::vector<PartialStatistics>& parts) const override {
    return merge_packed<Moments>(parts).packed();
  }

  void compute(const AllPartialStatistics& all, const std::string& error) override {
    if (!error.empty()) throw Error(error);
    const auto statistics = std::make_shared<GpuStatistics>(gpu(), pass_.data);
    std::int64_t count = 0;
    for (const auto& each : all) count += each->count();
    const Backend::Update update = pass_.merged(statistics, count);
    if (update.saved) save_or_restore(update.running, update.saved.get());
    // The kernel of the normalization moves them by this batch, when its turn has come.
    const auto& batches = update.batches;
    const auto own = std::find(batches.begin(), batches.end(), statistics);
    for (auto at = batches.begin(); at != own; ++at) move_averages(**at, update.running);
    StreamWorkspace workspace(gpu());
    launch_normalization(gpu(), pass_, *statistics, messages(all, &workspace),
                         own == batches.end() ? nullptr : &update.running, &workspace);
    if (own == batches.end()) return;
    for (auto at = own + 1; at != batches.end(); ++at) move_averages(**at, update.running);
  }

  void met() override { pass_.met(); }

  /// The arrays one after the other, each where a number of its type may lie.
  void save_or_restore(const Backend::RunningStatistics& running, Backend::SavedStatistics* saved) {
    const auto channels = static_cast<std::size_t>(layout().channels);
    const std::size_t number_bytes = dispatch(
        pass_.data.dtype, [](auto types) { return sizeof(typename decltype(types)::Parameter); });
    const std::pair<void*, std::size_t> arrays[] = {
        {running.mean, channels},
        {running.variance, channels},
        {running.num_batches, running.num_batches ? 1 : 0}};
    const bool restore = saved->values != nullptr;
    if (!restore) {
      saved->values = std::make_shared<Pool<Memory>::Lease>(gpu()->memory(2 * channels + 1));
    }
    const auto& memory = *static_cast<Pool<Memory>::Lease*>(saved->values.get());
    char* at = static_cast<char*>(memory->data());
    for (const auto& [array, size] : arrays) {
      const std::size_t bytes = size * number_bytes;
      if (bytes > 0)
        restore ? gpu()->stream()->copy(array, at, bytes) : gpu()->stream()->copy(at, array, bytes);
      at += bytes;
    }
  }

  void move_averages(const Statistics& batch, const Backend::RunningStatistics& running) {
    const auto& statistics = GpuStatistics::of(batch);
    dispatch(pass_.data.dtype, [&](auto types) {
      using P = typename decltype(types)::Parameter;
      const Channels<MoveAverages<P>> body{
          {statistics.arrays(), averages_of<P>(gpu(), running, statistics.channels)},
          statistics.channels};
      launch(body, body.blocks(), gpu()->stream());
    });
  }

  const Backend::Forward pass_;
};

class BackwardPass : public GpuPass {
 public:
  BackwardPass(Gpu* gpu, Backend::Backward pass)
      : GpuPass(gpu, pass.data.layout, std::move(pass.post), std::move(pass.done)),
        pass_(std::move(pass)),
        statistics_(GpuStatistics::of(*pass_.statistics)) {}

 private:
  void sum(double* message, StreamWorkspace* workspace) override {
    if (pass_.inplace) check_ = std::make_unique<InvertibleCheck>(gpu(), pass_);
    dispatch(pass_.data.dtype, [&](auto types) {
      using T = typename decltype(types)::Data;
      cuda::gradient_sums(static_cast<const T*>(pass_.dy), static_cast<const T*>(pass_.x), layout(),
                          statistics_.arrays().mean, workspace, message, gpu()->stream(),
                          gate<T>());
    });
  }

  PartialStatistics merge(const std::vector<PartialStatistics>& parts) const override {
    return merge_packed<GradientSums>(parts).packed();
  }

  void compute(const AllPartialStatistics& all, const std::string& error) override {
    if (!error.empty()) throw Error(error);
    const Backend::Gradients& gradients = pass_.gradients;
    if (!gradients.gamma && !gradients.beta && !gradients.data && !gradients.shortcut) return;
    dispatch(pass_.data.dtype, [&](auto types) {
      using T = typename decltype(types)::Data;
      using P = typename decltype(types)::Parameter;
      StreamWorkspace workspace(gpu());
      BackwardSource<P> source{};
      if (pass_.of_batch) source.messages = messages(all, &workspace);
      source.own = own();
      source.channels = statistics_.channels;
      source.mean = statistics_.arrays().mean;
      source.inv_std = statistics_.arrays().inv_std;
      source.gamma = static_cast<const P*>(pass_.gamma);
      source.count = static_cast<double>(pass_.count);
      source.sums = workspace.doubles(message_size());
      source.fix_gamma = gradients.fix_gamma;
      source.gamma_gradient = {static_cast<P*>(gradients.gamma),
                               gradients.write_gamma == WriteMode::kAdd};
      source.beta_gradient = {static_cast<P*>(gradients.beta),
                              gradients.write_beta == WriteMode::kAdd};
      cuda::input_gradient(static_cast<const T*>(pass_.dy), static_cast<const T*>(pass_.x),
                           layout(), source, gradients.write_data, static_cast<T*>(gradients.data),
                           &workspace, gpu()->stream(), gate<T>(), gradients.write_shortcut,
                           static_cast<T*>(gradients.shortcut));
    });
  }

  std::string fault() override {
    const auto check = std::move(check_);
    return check ? check->error() : "";
  }

  template <class T>
  Gate<T> gate() const {
    using P = Real<T>;
    return {pass_.activation,
            static_cast<const T*>(pass_.y),
            statistics_.normalizations<P>(),
            pass_.inplace,
            statistics_.arrays().inv_std,
            static_cast<const P*>(pass_.gamma),
            static_cast<const P*>(pass_.beta)};
  }

  const Backend::Backward pass_;
  const GpuStatistics& statistics_;
  std::unique_ptr<InvertibleCheck> check_;
};

}  // namespace

std::shared_ptr<DevicePass> pass_on_gpu(Gpu* gpu, Backend::Forward pass) {
  return std::make_shared<ForwardPass>(gpu, std::move(pass));
}

std::shared_ptr<DevicePass> pass_on_gpu(Gpu* gpu, Backend::Backward pass) {
  return std::make_shared<BackwardPass>(gpu, std::move(pass));
}

}  // namespace gluon_syncbn::cuda

#include "cpu/backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cpu/channel_math.h"
#include "cpu/kernels.h"
#include "cpu/thread_pool.h"

namespace gluon_syncbn {
namespace {

using cpu::ChannelParts;
using cpu::ChannelRange;
using cpu::has_runs;

/// Elements of one device that no cache keeps until all are there: to sum them up before would read
/// them from memory once more.
constexpr std::int64_t kTooManyToSumAhead = 3 << 19;
/// Elements of all devices from which on a few channels at a time are taken through the whole pass,
/// so that outputs find in cache what the sums have read. With less the caches keep everything,
/// each what its core has touched last: so devices make outputs on their own threads.
constexpr std::int64_t kManyOfAll = 1 << 21;
/// Elements of all devices up to which to wake a thread takes longer than their outputs.
constexpr std::int64_t kFewOfAll = 1 << 16;

/// Of one device, with partial statistics of the type `Part`. `Merged` is that of all devices, or
/// has more.
template <class Part, class Merged>
class HostPass : public DevicePass {
 public:
  HostPass(Layout layout, std::shared_ptr<Call> call, Part zeros)
      : layout_(layout),
        own_(std::move(zeros)),
        call_(std::move(call)),
        summed_(static_cast<std::size_t>(layout.channels), layout.count() == 0) {}

  void sum(const std::function<bool()>& all_are_coming) final {
    if (elements() >= kTooManyToSumAhead) return;
    const ChannelParts parts(layout_);
    for_ahead(parts.number(), [&](std::int64_t i) {
      if (all_are_coming()) return false;
      sum_missing(parts[i]);
      return true;
    });
  }

  void gather(const DevicePasses& passes, Then then) final {
    PartialStatistics merged;
    try {
      for (const auto& pass : passes) static_cast<HostPass&>(*pass).sum_rest();
      share_merged(passes);
      merge(all_channels());
      merged = merged_->packed();
    } catch (const std::exception& error) {
      return then({}, error.what());
    }
    then(merged, "");
  }

  void finish(const DevicePasses& passes, const std::vector<PartialStatistics>& processes) final {
    try {
      // The others first: their devices wait for that, while this one is still busy here.
      std::vector<std::shared_ptr<HostPass>> own_last;
      for (const auto& pass : passes) own_last.push_back(std::static_pointer_cast<HostPass>(pass));
      std::stable_partition(own_last.begin(), own_last.end(),
                            [this](const auto& pass) { return pass.get() != this; });
      if (processes.empty()) {
        share_merged(passes);
        finish_devices(own_last);
      } else {
        static_cast<Part&>(*merged_) = merge_packed<Part>(processes);
        have_merged(all_channels());
        for (const auto& pass : own_last) post_outputs(pass);
      }
    } catch (const std::exception& error) {
      for (const auto& pass : passes) pass->fail(error.what());
    }
  }

  void fail(const std::string& error) final { complete(error); }

  Call& call() final { return *call_; }

 protected:
  static std::vector<double> zeros(const Layout& layout) {
    return std::vector<double>(static_cast<std::size_t>(layout.channels));
  }

  const Layout& layout() const { return layout_; }
  Part& own() { return own_; }
  /// Null before the devices have met.
  const std::shared_ptr<Merged>& merged() const { return merged_; }

 private:
  virtual void sum_channels(ChannelRange channels) = 0;
  /// Zeros, for devices with so many elements in each channel.
  virtual std::shared_ptr<Merged> make_merged(std::int64_t count) const = 0;
  /// The numbers of these channels are there.
  virtual void have_merged(ChannelRange /*channels*/) {}
  virtual void prepare_outputs() = 0;
  virtual void write_outputs(ChannelRange channels) = 0;
  /// What is left for this device after the outputs.
  virtual void write_channel_results() = 0;

  ChannelRange all_channels() const { return {0, layout_.channels}; }

  /// Makes room for what this pass merges, and lets all others know where it is.
  void share_merged(const DevicePasses& passes) {
    std::int64_t count = 0;
    for (const auto& pass : passes) {
      const auto& each = static_cast<HostPass&>(*pass);
      parts_.push_back(&each.own_);
      count += each.layout_.count();
    }
    const auto merged = make_merged(count);
    for (const auto& pass : passes) static_cast<HostPass&>(*pass).merged_ = merged;
  }

  void merge(ChannelRange channels) {
    Part::merge(parts_, static_cast<std::size_t>(channels.begin),
                static_cast<std::size_t>(channels.end), merged_.get());
    have_merged(channels);
  }

  void finish_devices(const std::vector<std::shared_ptr<HostPass>>& own_last) {
    std::int64_t elements = 0;
    bool have_runs = true;
    for (const auto& pass : own_last) {
      elements += pass->elements();
      have_runs = have_runs && has_runs(pass->layout_);
    }
    if (elements >= kManyOfAll && have_runs) {
      take_parts(own_last);
      for (const auto& pass : own_last) pass->conclude();
      return;
    }
    for (const auto& pass : own_last) pass->sum_rest();
    merge(all_channels());
    for (const auto& pass : own_last) {
      pass.get() == this || elements <= kFewOfAll ? pass->write_all() : post_outputs(pass);
    }
  }

  /// Takes each part of the channels through the whole pass of all devices.
  void take_parts(const std::vector<std::shared_ptr<HostPass>>& passes) {
    std::int64_t count = 0;
    for (const auto& pass : passes) {
      pass->prepare_outputs();
      count += pass->layout_.count();
    }
    ChannelParts(layout_, count).for_each([&](ChannelRange channels) {
      for (const auto& pass : passes) pass->sum_missing(channels);
      merge(channels);
      for (auto pass = passes.rbegin(); pass != passes.rend(); ++pass) {
        if ((*pass)->layout_.count() > 0) (*pass)->write_outputs(channels);
      }
    });
  }

  std::int64_t elements() const { return layout_.count() * layout_.channels; }

  void sum_rest() {
    ChannelParts(layout_).for_each([this](ChannelRange channels) { sum_missing(channels); });
  }

  void sum_missing(ChannelRange channels) {
    const auto at = [this](std::int64_t c) { return summed_.begin() + c; };
    for (auto c = channels.begin; c < channels.end;) {
      const auto begin = std::find(at(c), at(channels.end), false);
      const auto end = std::find(begin, at(channels.end), true);
      if (begin != end) sum_channels({begin - at(0), end - at(0)});
      std::fill(begin, end, true);
      c = end - at(0);
    }
  }

  /// Lets the device write its outputs on its own thread.
  static void post_outputs(const std::shared_ptr<HostPass>& pass) {
    try {
      pass->call_->post([pass] { pass->write_all(); });
    } catch (const std::exception& error) {
      pass->fail(error.what());
    }
  }

  void write_all() {
    try {
      prepare_outputs();
      ChannelParts(layout_).for_each_backwards(
          [this](ChannelRange channels) { write_outputs(channels); });
    } catch (const std::exception& error) {
      return fail(error.what());
    }
    conclude();
  }

  void conclude() {
    std::string error;
    try {
      write_channel_results();
    } catch (const std::exception& caught) {
      error = caught.what();
    }
    complete(error);
  }

  /// Without effect the second time.
  void complete(const std::string& error) {
    if (const auto call = std::exchange(call_, nullptr)) call->complete(error);
  }

  const Layout layout_;
  Part own_;
  std::shared_ptr<Merged> merged_;
  std::vector<const Part*> parts_;  // of the pass that merges
  std::shared_ptr<Call> call_;      // until it is complete
  std::vector<char> summed_;        // by channel
};

struct BatchStatistics : Moments {
  BatchStatistics(std::int64_t count, const std::vector<double>& zeros)
      : Moments{count, zeros, zeros}, statistics(zeros.size()) {}

  HostStatistics statistics;  // from the moments
};

template <class T>
class ForwardPass : public HostPass<Moments, BatchStatistics> {
 public:
  ForwardPass(const Backend::Forward& work, std::shared_ptr<Call> call)
      : HostPass(work.data.layout, std::move(call),
                 {work.data.layout.count(), zeros(work.data.layout), zeros(work.data.layout)}),
        work_(work),
        x_(static_cast<const T*>(work_.x)),
        shortcut_(static_cast<const T*>(work_.shortcut)),
        y_(static_cast<T*>(work_.y)) {}

 private:
  void sum_channels(ChannelRange channels) override {
    cpu::moments(x_, layout(), channels, &own());
  }

  std::shared_ptr<BatchStatistics> make_merged(std::int64_t count) const override {
    return std::make_shared<BatchStatistics>(count, zeros(layout()));
  }

  void have_merged(ChannelRange channels) override {
    const auto end = static_cast<std::size_t>(channels.end);
    for (auto c = static_cast<std::size_t>(channels.begin); c < end; ++c) {
      merged()->statistics.set(c, merged()->mean[c], merged()->variance(c), work_.eps);
    }
  }

  void prepare_outputs() override {
    if (y_) store_ = cpu::prepare_output(work_.write, layout(), y_);
  }

  void write_outputs(ChannelRange channels) override {
    if (!y_) return;
    cpu::normalize(x_, layout(), channels,
                   affine_of<T>(merged()->statistics, work_.gamma, work_.beta), work_.activation,
                   store_, y_, shortcut_);
  }

  void write_channel_results() override {
    const StatisticsPtr statistics(merged(), &merged()->statistics);
    move_averages_on_host(work_.data, call().update(statistics, merged()->count));
  }

  const Backend::Forward work_;
  const T* const x_;
  const T* const shortcut_;
  T* const y_;
  cpu::StoreMode store_ = cpu::StoreMode::kAssign;
};

template <class T>
class BackwardPass : public HostPass<GradientSums, GradientSums> {
 public:
  BackwardPass(const Backend::Backward& work, std::shared_ptr<Call> call)
      : HostPass(work.data.layout, std::move(call),
                 {zeros(work.data.layout), zeros(work.data.layout)}),
        work_(work),
        statistics_(HostStatistics::of(*work_.statistics)),
        dy_(static_cast<const T*>(work_.dy)),
        x_(static_cast<const T*>(work_.x)),
        normalization_(affine_of<T>(statistics_, work_.gamma, work_.beta)),
        gate_{work_.activation, static_cast<const T*>(work_.y)},
        dx_(static_cast<T*>(work_.gradients.data)),
        dshortcut_(static_cast<T*>(work_.gradients.shortcut)) {}

 private:
  void sum_channels(ChannelRange channels) override {
    cpu::gradient_sums(dy_, x_, layout(), channels, normalization_, gate_, &own());
  }

  std::shared_ptr<GradientSums> make_merged(std::int64_t /*count*/) const override {
    return std::make_shared<GradientSums>(GradientSums{zeros(layout()), zeros(layout())});
  }

  void prepare_outputs() override {
    const Backend::Gradients& wanted = work_.gradients;
    if (dx_) store_ = cpu::prepare_output(wanted.write_data, layout(), dx_);
    if (!dshortcut_) return;
    store_shortcut_ = cpu::prepare_output(wanted.write_shortcut, layout(), dshortcut_);
  }

  void write_outputs(ChannelRange channels) override {
    if (dshortcut_) {
      cpu::shortcut_gradient(dy_, layout(), channels, gate_, store_shortcut_, dshortcut_);
    }
    if (!dx_) return;
    cpu::input_gradient(dy_, x_, layout(), channels, normalization_, gate_,
                        work_.of_batch ? merged().get() : nullptr, static_cast<double>(work_.count),
                        store_, dx_);
  }

  void write_channel_results() override {
    write_parameter_gradients(work_.data, own(), statistics_, work_.gradients);
  }

  const Backend::Backward work_;
  const HostStatistics& statistics_;
  const T* const dy_;
  const T* const x_;
  const cpu::Affine<T> normalization_;
  const cpu::Gate<T> gate_;
  T* const dx_;
  T* const dshortcut_;
  cpu::StoreMode store_ = cpu::StoreMode::kAssign;
  cpu::StoreMode store_shortcut_ = cpu::StoreMode::kAssign;
};

class CpuBackend : public Backend {
 public:
  std::shared_ptr<DevicePass> forward(const Forward& work, std::shared_ptr<Call> call) override {
    return dispatch(work.data.dtype, [&](auto types) -> std::shared_ptr<DevicePass> {
      return std::make_shared<ForwardPass<typename decltype(types)::Data>>(work, std::move(call));
    });
  }

  std::shared_ptr<DevicePass> backward(const Backward& work, std::shared_ptr<Call> call) override {
    if (work.inplace) require_invertible(work);
    return dispatch(work.data.dtype, [&](auto types) -> std::shared_ptr<DevicePass> {
      return std::make_shared<BackwardPass<typename decltype(types)::Data>>(work, std::move(call));
    });
  }

  StatisticsPtr running_statistics(const Data& data, const void* running_mean,
                                   const void* running_variance, double eps) override {
    return running_statistics_on_host(data, running_mean, running_variance, eps);
  }

  void inference(const Forward& work, const StatisticsPtr& statistics,
                 std::shared_ptr<Call> call) override {
    if (work.y) {
      dispatch(work.data.dtype, [&](auto types) {
        normalize<typename decltype(types)::Data>(work, HostStatistics::of(*statistics));
      });
    }
    call->complete("");
  }

 private:
  template <class T>
  static void normalize(const Forward& work, const HostStatistics& statistics) {
    const Layout& layout = work.data.layout;
    T* const y = static_cast<T*>(work.y);
    const auto store = cpu::prepare_output(work.write, layout, y);
    ChannelParts(layout).for_each_backwards([&](ChannelRange channels) {
      cpu::normalize(static_cast<const T*>(work.x), layout, channels,
                     affine_of<T>(statistics, work.gamma, work.beta), work.activation, store, y,
                     static_cast<const T*>(work.shortcut));
    });
  }
};

}  // namespace

const std::shared_ptr<Backend>& cpu_backend() {
  static const std::shared_ptr<Backend>& backend =
      *new std::shared_ptr<Backend>(std::make_shared<CpuBackend>());
  return backend;
}

}  // namespace gluon_syncbn

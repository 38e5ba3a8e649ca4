#include "cpu/passes.h"

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

/// Elements of all devices from which on a few channels at a time are taken through the whole pass,
/// so that outputs find in cache what the sums have read. With less the caches keep everything,
/// each what its core has touched last: so devices make outputs on their own threads.
constexpr std::int64_t kMuch = 1 << 21;
/// Elements of all devices up to which to wake a thread takes longer than their outputs.
constexpr std::int64_t kLittle = 1 << 16;

/// Elements of one device that no cache keeps until all are there: to sum them up before would read
/// them from memory once more.
constexpr std::int64_t kTooMuch = 3 << 19;

using Post = std::function<void(std::function<void()> task)>;

/// Of one device; the merged statistics of all devices are with the pass that merges them.
class HostPass : public DevicePass {
 public:
  HostPass(Layout layout, Post post, Backend::Done done)
      : layout_(layout),
        post_(std::move(post)),
        done_(std::move(done)),
        summed_(static_cast<std::size_t>(layout.channels)) {
    if (layout.count() == 0) std::fill(summed_.begin(), summed_.end(), true);
  }

  void begin(const std::function<bool()>& all_are_coming) final {
    if (!all_are_coming) return sum_rest();
    if (elements() >= kTooMuch) return;
    const auto sum_ahead = [&](ChannelRange channels) {
      if (all_are_coming()) return false;
      sum_missing(channels);
      return true;
    };
    if (!has_runs(layout_)) {
      for_ahead(1, [&](std::int64_t) { return sum_ahead(all_channels()); });
      return;
    }
    const ChannelParts parts(layout_.channels, layout_.count());
    for_ahead(parts.number(), [&](std::int64_t i) { return sum_ahead(parts[i]); });
  }

  void reduce(const DevicePasses& passes, Then then) final {
    PartialStatistics merged;
    try {
      share_merged(passes);
      merge(all_channels());
      merged = packed();
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
      if (!processes.empty()) {
        replace_merged(processes);
        for (const auto& pass : own_last) finish_later(pass);
        return;
      }
      share_merged(passes);
      finish_here(own_last);
    } catch (const std::exception& error) {
      for (const auto& pass : passes) static_cast<HostPass&>(*pass).tell(error.what());
    }
  }

  void fail(const std::string& error) final { tell(error); }

 protected:
  template <class Kind>
  static std::vector<Kind*> all_of(const DevicePasses& passes) {
    std::vector<Kind*> all;
    for (const auto& pass : passes) all.push_back(static_cast<Kind*>(pass.get()));
    return all;
  }

  const Layout& layout() const { return layout_; }
  std::vector<double> zeros() const { return std::vector<double>(summed_.size()); }
  ChannelRange all_channels() const { return {0, layout_.channels}; }

 private:
  /// Sums up some channels, or all where the layout has no runs.
  virtual void sum(ChannelRange channels) = 0;
  /// Makes room for what this pass merges, and lets all others know where it is.
  virtual void share_merged(const DevicePasses& passes) = 0;
  virtual void merge(ChannelRange channels) = 0;
  /// What is merged of this process.
  virtual PartialStatistics packed() const = 0;
  /// Puts what is merged of all processes in its place.
  virtual void replace_merged(const std::vector<PartialStatistics>& processes) = 0;
  virtual void prepare_output() = 0;
  virtual void output(ChannelRange channels) = 0;
  virtual void output() = 0;
  /// What is left for this device once everything is merged.
  virtual void conclude() = 0;

  void finish_here(const std::vector<std::shared_ptr<HostPass>>& own_last) {
    std::int64_t elements = 0;
    bool have_runs = true;
    for (const auto& pass : own_last) {
      elements += pass->elements();
      have_runs = have_runs && has_runs(pass->layout_);
    }
    if (elements >= kMuch && have_runs) {
      take_parts(own_last);
      for (const auto& pass : own_last) pass->end();
      return;
    }
    for (const auto& pass : own_last) pass->sum_rest();
    merge(all_channels());
    for (const auto& pass : own_last) {
      if (pass.get() == this || elements <= kLittle) {
        pass->finish_alone();
      } else {
        finish_later(pass);
      }
    }
  }

  std::int64_t elements() const { return layout_.count() * layout_.channels; }

  void sum_rest() {
    if (!has_runs(layout_)) return sum_missing(all_channels());
    const ChannelParts parts(layout_.channels, layout_.count());
    parallel_for(parts.number(), [&](std::int64_t i) { sum_missing(parts[i]); });
  }

  void sum_missing(ChannelRange channels) {
    const auto at = [this](std::int64_t c) { return summed_.begin() + c; };
    for (auto c = channels.begin; c < channels.end;) {
      const auto begin = std::find(at(c), at(channels.end), false);
      const auto end = std::find(begin, at(channels.end), true);
      if (begin != end) sum({begin - at(0), end - at(0)});
      std::fill(begin, end, true);
      c = end - at(0);
    }
  }

  void take_parts(const std::vector<std::shared_ptr<HostPass>>& passes) {
    std::int64_t count = 0;
    for (const auto& pass : passes) {
      pass->prepare_output();
      count += pass->layout_.count();
    }
    const ChannelParts parts(layout_.channels, count);
    parallel_for(parts.number(), [&](std::int64_t i) {
      for (const auto& pass : passes) pass->sum_missing(parts[i]);
      merge(parts[i]);
      for (auto pass = passes.rbegin(); pass != passes.rend(); ++pass) {
        if ((*pass)->layout_.count() > 0) (*pass)->output(parts[i]);
      }
    });
  }

  static void finish_later(const std::shared_ptr<HostPass>& pass) {
    try {
      pass->post_([pass] { pass->finish_alone(); });
    } catch (const std::exception& error) {
      pass->tell(error.what());
    }
  }

  void finish_alone() {
    tell_after([this] {
      output();
      conclude();
    });
  }

  void end() {
    tell_after([this] { conclude(); });
  }

  template <class Task>
  void tell_after(const Task& task) {
    std::string error;
    try {
      task();
    } catch (const std::exception& caught) {
      error = caught.what();
    }
    tell(error);
  }

  /// Once.
  void tell(const std::string& error) {
    const Backend::Done done = std::exchange(done_, nullptr);
    if (done) done(error);
  }

  const Layout layout_;
  const Post post_;
  Backend::Done done_;
  std::vector<char> summed_;  // by channel
};

template <class T>
class ForwardPass : public HostPass {
 public:
  explicit ForwardPass(Backend::Forward pass)
      : HostPass(pass.data.layout, std::move(pass.post), std::move(pass.done)),
        pass_(std::move(pass)),
        x_(static_cast<const T*>(pass_.x)),
        shortcut_(static_cast<const T*>(pass_.shortcut)),
        y_(static_cast<T*>(pass_.y)),
        own_{layout().count(), zeros(), zeros()} {}

 private:
  void sum(ChannelRange channels) override {
    if (has_runs(layout())) {
      cpu::moments(x_, layout(), channels, &own_);
    } else {
      own_ = cpu::moments(x_, layout());
    }
  }

  void share_merged(const DevicePasses& passes) override {
    merged_ = std::make_shared<Moments>(Moments{0, zeros(), zeros()});
    statistics_ = std::make_shared<HostStatistics>(merged_->mean.size());
    for (ForwardPass* pass : all_of<ForwardPass>(passes)) {
      parts_.push_back(&pass->own_);
      merged_->count += pass->own_.count;
      pass->merged_ = merged_;
      pass->statistics_ = statistics_;
    }
  }

  void merge(ChannelRange channels) override {
    Moments::merge(parts_, static_cast<std::size_t>(channels.begin),
                   static_cast<std::size_t>(channels.end), merged_.get());
    set_statistics(channels);
  }

  PartialStatistics packed() const override { return merged_->packed(); }

  void replace_merged(const std::vector<PartialStatistics>& processes) override {
    *merged_ = merge_packed<Moments>(processes);
    set_statistics(all_channels());
  }

  void set_statistics(ChannelRange channels) {
    const auto end = static_cast<std::size_t>(channels.end);
    for (auto c = static_cast<std::size_t>(channels.begin); c < end; ++c) {
      statistics_->set(c, merged_->mean[c], merged_->variance(c), pass_.eps);
    }
  }

  void prepare_output() override {
    if (y_) store_ = cpu::prepare_output(pass_.write, layout(), y_);
  }

  void output(ChannelRange channels) override {
    if (!y_) return;
    cpu::normalize(x_, layout(), channels, normalization(channels), store_, y_, shortcut_);
  }

  void output() override {
    if (!y_) return;
    cpu::normalize(x_, layout(), normalization(all_channels()), pass_.write, y_, shortcut_);
  }

  void met() override { pass_.met(); }
  void conclude() override {
    move_averages_on_host(pass_.data, pass_.merged(statistics_, merged_->count));
  }

  cpu::Normalization normalization(ChannelRange channels) const {
    return normalization_of(pass_.data, channels, *statistics_, pass_.gamma, pass_.beta,
                            pass_.activation);
  }

  const Backend::Forward pass_;
  const T* const x_;
  const T* const shortcut_;
  T* const y_;
  cpu::StoreMode store_ = cpu::StoreMode::kAssign;
  Moments own_;
  std::shared_ptr<Moments> merged_;             // of all devices
  std::shared_ptr<HostStatistics> statistics_;  // from them
  std::vector<const Moments*> parts_;           // of the pass that merges
};

template <class T>
class BackwardPass : public HostPass {
 public:
  explicit BackwardPass(Backend::Backward pass)
      : HostPass(pass.data.layout, std::move(pass.post), std::move(pass.done)),
        pass_(std::move(pass)),
        statistics_(HostStatistics::of(*pass_.statistics)),
        dy_(static_cast<const T*>(pass_.dy)),
        x_(static_cast<const T*>(pass_.x)),
        gate_(gate_of<T>(pass_)),
        dx_(static_cast<T*>(pass_.gradients.data)),
        dshortcut_(static_cast<T*>(pass_.gradients.shortcut)),
        own_{zeros(), zeros()} {}

 private:
  void sum(ChannelRange channels) override {
    if (has_runs(layout())) {
      cpu::gradient_sums(dy_, x_, layout(), channels, statistics_.mean, &own_, gate_);
    } else {
      own_ = cpu::gradient_sums(dy_, x_, layout(), statistics_.mean, gate_);
    }
  }

  void share_merged(const DevicePasses& passes) override {
    merged_ = std::make_shared<GradientSums>(GradientSums{zeros(), zeros()});
    for (BackwardPass* pass : all_of<BackwardPass>(passes)) {
      parts_.push_back(&pass->own_);
      pass->merged_ = merged_;
    }
  }

  void merge(ChannelRange channels) override {
    GradientSums::merge(parts_, static_cast<std::size_t>(channels.begin),
                        static_cast<std::size_t>(channels.end), merged_.get());
  }

  PartialStatistics packed() const override { return merged_->packed(); }

  void replace_merged(const std::vector<PartialStatistics>& processes) override {
    *merged_ = merge_packed<GradientSums>(processes);
  }

  void prepare_output() override {
    const Backend::Gradients& wanted = pass_.gradients;
    if (dx_) store_ = cpu::prepare_output(wanted.write_data, layout(), dx_);
    if (!dshortcut_) return;
    store_shortcut_ = cpu::prepare_output(wanted.write_shortcut, layout(), dshortcut_);
  }

  void output(ChannelRange channels) override {
    if (dshortcut_) {
      cpu::shortcut_gradient(dy_, layout(), channels, store_shortcut_, dshortcut_, gate_);
    }
    if (!dx_) return;
    cpu::input_gradient(dy_, x_, layout(), channels, gradient(channels), store_, dx_, gate_);
  }

  void output() override {
    const Backend::Gradients& wanted = pass_.gradients;
    if (dshortcut_) {
      cpu::shortcut_gradient(dy_, layout(), wanted.write_shortcut, dshortcut_, gate_);
    }
    if (!dx_) return;
    cpu::input_gradient(dy_, x_, layout(), gradient(all_channels()), wanted.write_data, dx_, gate_);
  }

  void conclude() override {
    write_parameter_gradients(pass_.data, own_, statistics_, pass_.gradients);
  }

  cpu::InputGradient gradient(ChannelRange channels) const {
    return input_gradient_of(pass_.data, channels, statistics_,
                             pass_.of_batch ? merged_.get() : nullptr, pass_.count, pass_.gamma);
  }

  const Backend::Backward pass_;
  const HostStatistics& statistics_;
  const T* const dy_;
  const T* const x_;
  const cpu::Gate<T> gate_;
  T* const dx_;
  T* const dshortcut_;
  cpu::StoreMode store_ = cpu::StoreMode::kAssign;
  cpu::StoreMode store_shortcut_ = cpu::StoreMode::kAssign;
  GradientSums own_;
  std::shared_ptr<GradientSums> merged_;    // of all devices
  std::vector<const GradientSums*> parts_;  // of the pass that merges
};

}  // namespace

std::shared_ptr<DevicePass> pass_on_host(Backend::Forward pass) {
  return dispatch(pass.data.dtype, [&](auto types) -> std::shared_ptr<DevicePass> {
    return std::make_shared<ForwardPass<typename decltype(types)::Data>>(std::move(pass));
  });
}

std::shared_ptr<DevicePass> pass_on_host(Backend::Backward pass) {
  return dispatch(pass.data.dtype, [&](auto types) -> std::shared_ptr<DevicePass> {
    return std::make_shared<BackwardPass<typename decltype(types)::Data>>(std::move(pass));
  });
}

}  // namespace gluon_syncbn

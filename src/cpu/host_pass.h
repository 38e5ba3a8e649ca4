#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "cpu/kernels.h"
#include "cpu/thread_pool.h"
#include "cpu/tuning.h"
#include "norm/moments.h"

namespace gluon_syncbn::cpu {

/// The pass of one CPU context, with partial statistics of the type `Part`. `Merged` is `Part` or
/// derives from it.
template <class Part, class Merged>
class HostPass : public DevicePass {
 public:
  HostPass(Layout layout, std::shared_ptr<Call> call, Part zeros)
      : layout_(layout),
        own_(std::move(zeros)),
        call_(std::move(call)) {}

  /// The last device sums for all, so that its outputs find the elements in the caches.
  void sum() final {}

  void merge(const DevicePasses& passes, OnMerged then) final {
    PartialStatistics merged;
    try {
      for (const auto& pass : passes) static_cast<HostPass&>(*pass).sum_all();
      share_merged(passes);
      merge_channels(all_channels());
      merged = merged_->packed();
    } catch (const std::exception& error) {
      return then({}, error.what());
    }
    then(merged, "");
  }

  void finish(const DevicePasses& passes, const std::vector<PartialStatistics>& processes) final {
    try {
      std::vector<HostPass*> own;
      for (const auto& pass : passes) own.push_back(static_cast<HostPass*>(pass.get()));
      share_merged(passes);
      if (processes.empty()) {
        finish_devices(own);
      } else {
        static_cast<Part&>(*merged_) = merge_packed<Part>(processes);
        have_merged(all_channels());
        for (const auto& pass : own) pass->write_all();
      }
      write_results_of_all(own);
      for (HostPass* pass : own) pass->complete("");
    } catch (const std::exception& error) {
      for (const auto& pass : passes) pass->fail(error.what());
    }
  }

  void fail(const std::string& error) final { complete(error); }

 protected:
  static std::vector<double> zeros(const Layout& layout) {
    return std::vector<double>(static_cast<std::size_t>(layout.channels));
  }

  const Layout& layout() const { return layout_; }
  Part& own() { return own_; }
  /// Null until the devices have met.
  const std::shared_ptr<Merged>& merged() const { return merged_; }

 private:
  virtual void sum_channels(Channels channels) = 0;
  /// Returns zeros for all channels. A channel has `count` elements on all devices together.
  virtual std::shared_ptr<Merged> make_merged(std::int64_t count) const = 0;
  /// Called after these channels are merged.
  virtual void have_merged(Channels /*channels*/) {}
  virtual void prepare_outputs() = 0;
  virtual void write_outputs(Channels channels) = 0;
  /// Writes the results with one number per channel, after all channels are merged.
  virtual void write_channel_results() = 0;
  /// Returns the lock that is held while the devices write those results.
  virtual std::unique_lock<std::mutex> lock_results() const { return {}; }

  Channels all_channels() const { return {0, layout_.channels}; }

  /// Collects the parts of all devices, and gives all passes one result to merge them into.
  void share_merged(const DevicePasses& passes) {
    std::int64_t count = 0;
    parts_.clear();
    for (const auto& pass : passes) {
      const auto& each = static_cast<HostPass&>(*pass);
      parts_.push_back(&each.own_);
      count += each.layout_.count();
    }
    const auto merged = make_merged(count);
    for (const auto& pass : passes) static_cast<HostPass&>(*pass).merged_ = merged;
  }

  void merge_channels(Channels channels) {
    Part::merge(parts_, static_cast<std::size_t>(channels.begin),
                static_cast<std::size_t>(channels.end), merged_.get());
    have_merged(channels);
  }

  void finish_devices(const std::vector<HostPass*>& passes) {
    std::int64_t elements = 0;
    bool have_runs = true;
    for (const HostPass* pass : passes) {
      elements += pass->elements();
      have_runs = have_runs && has_runs(pass->layout_);
    }
    if (elements >= kManyOfAll && have_runs) return take_parts(passes);
    for (HostPass* pass : passes) pass->sum_all();
    merge_channels(all_channels());
    for (auto pass = passes.rbegin(); pass != passes.rend(); ++pass) (*pass)->write_all();
  }

  /// For each part of the channels, sums, merges and writes the outputs of all devices. The outputs
  /// begin with the device whose elements the sums have read last.
  void take_parts(const std::vector<HostPass*>& passes) {
    std::int64_t count = 0;
    for (const auto& pass : passes) {
      pass->prepare_outputs();
      count += pass->layout_.count();
    }
    ChannelParts(layout_, count).for_each([&](Channels channels) {
      for (const auto& pass : passes) pass->sum_channels(channels);
      merge_channels(channels);
      for (auto pass = passes.rbegin(); pass != passes.rend(); ++pass) {
        if ((*pass)->layout_.count() > 0) (*pass)->write_outputs(channels);
      }
    });
  }

  std::int64_t elements() const { return layout_.count() * layout_.channels; }

  void sum_all() {
    ChannelParts(layout_).for_each([this](Channels channels) { sum_channels(channels); });
  }

  void write_all() {
    prepare_outputs();
    ChannelParts(layout_).for_each_backwards([this](Channels channels) { write_outputs(channels); });
  }

  /// Writes the results of all devices before any call completes. Once a call is complete, MXNet
  /// may let the next use of the layer read running statistics.
  void write_results_of_all(const std::vector<HostPass*>& passes) {
    const auto lock = lock_results();
    for (const auto& pass : passes) pass->write_channel_results();
  }

  /// Has no effect the second time.
  void complete(const std::string& error) {
    if (const auto call = std::exchange(call_, nullptr)) call->complete(error);
  }

  const Layout layout_;
  Part own_;
  std::shared_ptr<Merged> merged_;
  std::vector<const Part*> parts_;  // the parts of all devices, in the pass that merges them
  std::shared_ptr<Call> call_;      // null once it is complete
};

}  // namespace gluon_syncbn::cpu

#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "cpu/kernels.h"
#include "norm/moments.h"

namespace gluon_syncbn::cpu {

/// The pass of one CPU context, with partial statistics of the type `Part`. `Merged` is `Part` or
/// derives from it.
///
/// The last device computes for all. It takes a part of the channels at a time, on the threads of
/// the pool: it sums the part on all devices, merges the sums, and writes the outputs of all
/// devices. So the outputs find the elements that the sums have read in the caches.
template <class Part, class Merged>
class HostPass : public DevicePass {
 public:
  HostPass(Layout layout, std::shared_ptr<Call> call, Part zeros)
      : layout_(layout), own_(std::move(zeros)), call_(std::move(call)) {}

  /// The last device sums for all.
  void sum() final {}

  void merge(const DevicePasses& passes, OnMerged then) final {
    PartialStatistics merged;
    try {
      const auto all = share_merged(passes);
      for_each_part(layouts(all), [&](Channels channels) { merge_channels(all, channels); });
      merged = merged_->packed();
    } catch (const std::exception& error) {
      return then({}, error.what());
    }
    then(merged, "");
  }

  void finish(const DevicePasses& passes, const std::vector<PartialStatistics>& processes) final {
    try {
      const auto all = share_merged(passes);
      const bool merges = processes.empty();
      if (!merges) {
        static_cast<Part&>(*merged_) = merge_packed<Part>(processes);
        have_merged({0, layout_.channels});
      }
      for_each_part(layouts(all), [&](Channels channels) {
        if (merges) merge_channels(all, channels);
        // The sums have read the last device last.
        for (auto pass = all.rbegin(); pass != all.rend(); ++pass) (*pass)->write_outputs(channels);
      });
      write_channel_results_of(all);
      for (HostPass* pass : all) pass->complete("");
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
  virtual void write_outputs(Channels channels) = 0;
  /// Writes the results with one number per channel, after all channels are merged.
  virtual void write_channel_results() = 0;
  /// Returns the lock that is held while the devices write those results.
  virtual std::unique_lock<std::mutex> lock_results() const { return {}; }

  /// Returns the passes of all devices, and gives them one result to merge into.
  std::vector<HostPass*> share_merged(const DevicePasses& passes) {
    std::vector<HostPass*> all;
    std::int64_t count = 0;
    for (const auto& pass : passes) {
      all.push_back(static_cast<HostPass*>(pass.get()));
      count += all.back()->layout_.count();
    }
    const auto merged = make_merged(count);
    for (HostPass* pass : all) pass->merged_ = merged;
    return all;
  }

  static std::vector<Layout> layouts(const std::vector<HostPass*>& passes) {
    std::vector<Layout> layouts;
    for (const HostPass* pass : passes) layouts.push_back(pass->layout_);
    return layouts;
  }

  /// Sums these channels on all devices, and merges the sums.
  void merge_channels(const std::vector<HostPass*>& passes, Channels channels) {
    std::vector<const Part*> parts;
    for (HostPass* pass : passes) {
      pass->sum_channels(channels);
      parts.push_back(&pass->own_);
    }
    Part::merge(parts, static_cast<std::size_t>(channels.begin),
                static_cast<std::size_t>(channels.end), merged_.get());
    have_merged(channels);
  }

  /// Writes the results of all devices before any call completes. Once a call is complete, MXNet
  /// may let the next use of the layer read running statistics.
  void write_channel_results_of(const std::vector<HostPass*>& passes) {
    const auto lock = lock_results();
    for (HostPass* pass : passes) pass->write_channel_results();
  }

  /// Has no effect the second time.
  void complete(const std::string& error) {
    if (const auto call = std::exchange(call_, nullptr)) call->complete(error);
  }

  const Layout layout_;
  Part own_;
  std::shared_ptr<Merged> merged_;
  std::shared_ptr<Call> call_;  // null once it is complete
};

}  // namespace gluon_syncbn::cpu

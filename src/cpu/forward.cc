#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cpu/channel_math.h"
#include "cpu/host_pass.h"
#include "cpu/kernels.h"
#include "cpu/passes.h"
#include "cpu/thread_pool.h"

namespace gluon_syncbn::cpu {
namespace {

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
  void sum_channels(Channels channels) override { moments(x_, layout(), channels, &own()); }

  std::shared_ptr<BatchStatistics> make_merged(std::int64_t count) const override {
    return std::make_shared<BatchStatistics>(count, zeros(layout()));
  }

  void have_merged(Channels channels) override {
    const auto end = static_cast<std::size_t>(channels.end);
    for (auto c = static_cast<std::size_t>(channels.begin); c < end; ++c) {
      merged()->statistics.set(c, merged()->mean[c], merged()->variance(c), work_.eps);
    }
  }

  void prepare_outputs() override {
    if (y_) store_ = prepare_output(work_.write, layout(), y_);
  }

  void write_outputs(Channels channels) override {
    if (!y_) return;
    normalize(x_, layout(), channels, affine_of<T>(merged()->statistics, work_.gamma, work_.beta),
              work_.activation, store_, y_, shortcut_);
  }

  void write_channel_results() override {
    *work_.saved = {StatisticsPtr(merged(), &merged()->statistics), merged()->count};
    // A batch without elements has no statistics.
    const std::int64_t count = merged()->count;
    if (count > 0) move_running_statistics(work_, merged()->statistics, count);
  }

  std::unique_lock<std::mutex> lock_results() const override { return lock_running_statistics(); }

  const Backend::Forward work_;
  const T* const x_;
  const T* const shortcut_;
  T* const y_;
  StoreMode store_ = StoreMode::kAssign;
};

template <class T>
void normalize_by(const Backend::Forward& work, const HostStatistics& statistics) {
  const Layout& layout = work.data.layout;
  T* const y = static_cast<T*>(work.y);
  const auto store = prepare_output(work.write, layout, y);
  ChannelParts(layout).for_each_backwards([&](Channels channels) {
    normalize(static_cast<const T*>(work.x), layout, channels,
              affine_of<T>(statistics, work.gamma, work.beta), work.activation, store, y,
              static_cast<const T*>(work.shortcut));
  });
}

}  // namespace

std::shared_ptr<DevicePass> forward_pass(const Backend::Forward& work, std::shared_ptr<Call> call) {
  return dispatch(work.data.dtype, [&](auto types) -> std::shared_ptr<DevicePass> {
    return std::make_shared<ForwardPass<typename decltype(types)::Data>>(work, std::move(call));
  });
}

void inference(const Backend::Forward& work, const Statistics& statistics) {
  if (!work.y) return;
  dispatch(work.data.dtype, [&](auto types) {
    normalize_by<typename decltype(types)::Data>(work, HostStatistics::of(statistics));
  });
}

}  // namespace gluon_syncbn::cpu

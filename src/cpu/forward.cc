#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "backend/running_statistics_lock.h"
#include "cpu/channel_math.h"
#include "cpu/host_pass.h"
#include "cpu/kernels.h"
#include "cpu/passes.h"

namespace gluon_syncbn::cpu {
namespace {

template <class T>
class ForwardPass : public HostPass<Moments, HostStatistics> {
 public:
  ForwardPass(const Backend::Forward& work, std::shared_ptr<Call> call)
      : HostPass(work.data.layout, std::move(call),
                 {work.data.layout.count(), zeros(work.data.layout), zeros(work.data.layout)}),
        work_(work),
        x_(static_cast<const T*>(work_.x)),
        shortcut_(static_cast<const T*>(work_.shortcut)),
        y_(static_cast<T*>(work_.y)),
        store_(prepare_output(work_.write, layout(), y_)) {}

 private:
  void sum_channels(Channels channels) override { moments(x_, layout(), channels, &own()); }

  std::shared_ptr<HostStatistics> make_merged(std::int64_t count) const override {
    return std::make_shared<HostStatistics>(count, layout().channels);
  }

  void have_merged(Channels channels) override {
    for (auto c = channels.begin; c < channels.end; ++c) {
      merged()->set_inv_std(static_cast<std::size_t>(c), work_.eps);
    }
  }

  void write_outputs(Channels channels) override {
    if (!y_) return;
    normalize(x_, layout(), channels, channel_parameters<T>(*merged(), work_.gamma, work_.beta),
              work_.activation, store_, y_, shortcut_);
  }

  void write_channel_results() override {
    *work_.saved = {merged(), merged()->count};
    if (merged()->count > 0) move_running_statistics(work_, *merged());
  }

  std::unique_lock<std::mutex> lock_results() const override { return lock_running_statistics(); }

  const Backend::Forward work_;
  const T* const x_;
  const T* const shortcut_;
  T* const y_;
  const StoreMode store_;
};

template <class T>
void normalize_by(const Backend::Forward& work, const HostStatistics& statistics) {
  const Layout& layout = work.data.layout;
  T* const y = static_cast<T*>(work.y);
  const auto store = prepare_output(work.write, layout, y);
  for_each_part({layout}, [&](Channels channels) {
    normalize(static_cast<const T*>(work.x), layout, channels,
              channel_parameters<T>(statistics, work.gamma, work.beta), work.activation, store, y,
              static_cast<const T*>(work.shortcut));
  });
}

}  // namespace

std::shared_ptr<DevicePass> forward_pass(const Backend::Forward& work, std::shared_ptr<Call> call) {
  return dispatch(work.data.dtype, [&](auto types) -> std::shared_ptr<DevicePass> {
    return std::make_shared<ForwardPass<typename decltype(types)::Data>>(work, std::move(call));
  });
}

void inference(const Backend::Forward& work) {
  const auto statistics = running_statistics_on_host(work);
  *work.saved = {statistics, 0};
  if (!work.y) return;
  dispatch(work.data.dtype,
           [&](auto types) { normalize_by<typename decltype(types)::Data>(work, *statistics); });
}

}  // namespace gluon_syncbn::cpu

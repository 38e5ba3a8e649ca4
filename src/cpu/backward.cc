#include <cstdint>
#include <memory>
#include <utility>

#include "cpu/channel_math.h"
#include "cpu/host_pass.h"
#include "cpu/kernels.h"
#include "cpu/passes.h"

namespace gluon_syncbn::cpu {
namespace {

template <class T>
class BackwardPass : public HostPass<GradientSums, GradientSums> {
 public:
  BackwardPass(const Backend::Backward& work, std::shared_ptr<Call> call)
      : HostPass(work.data.layout, std::move(call),
                 {zeros(work.data.layout), zeros(work.data.layout)}),
        work_(work),
        statistics_(HostStatistics::of(*work_.saved.statistics)),
        dy_(static_cast<const T*>(work_.dy)),
        x_(static_cast<const T*>(work_.x)),
        normalization_(channel_parameters<T>(statistics_, work_.gamma, work_.beta)),
        gate_{work_.activation, static_cast<const T*>(work_.y)},
        dx_(static_cast<T*>(work_.gradients.data)),
        dshortcut_(static_cast<T*>(work_.gradients.shortcut)),
        store_(prepare_output(work_.gradients.write_data, layout(), dx_)),
        store_shortcut_(prepare_output(work_.gradients.write_shortcut, layout(), dshortcut_)) {}

 private:
  void sum_channels(Channels channels) override {
    gradient_sums(dy_, x_, layout(), channels, normalization_, gate_, &own());
  }

  std::shared_ptr<GradientSums> make_merged(std::int64_t /*count*/) const override {
    return std::make_shared<GradientSums>(GradientSums{zeros(layout()), zeros(layout())});
  }

  void write_outputs(Channels channels) override {
    if (dshortcut_) {
      shortcut_gradient(dy_, layout(), channels, gate_, store_shortcut_, dshortcut_);
    }
    if (!dx_) return;
    input_gradient(dy_, x_, layout(), channels, normalization_, gate_,
                   work_.saved.count > 0 ? merged().get() : nullptr,
                   static_cast<double>(work_.saved.count), store_, dx_);
  }

  void write_channel_results() override { write_parameter_gradients(work_, own(), statistics_); }

  const Backend::Backward work_;
  const HostStatistics& statistics_;
  const T* const dy_;
  const T* const x_;
  const ChannelParameters<T> normalization_;
  const DzInputs<T> gate_;
  T* const dx_;
  T* const dshortcut_;
  const StoreMode store_;
  const StoreMode store_shortcut_;
};

}  // namespace

std::shared_ptr<DevicePass> backward_pass(const Backend::Backward& work,
                                          std::shared_ptr<Call> call) {
  if (work.inplace) require_invertible(work);
  return dispatch(work.data.dtype, [&](auto types) -> std::shared_ptr<DevicePass> {
    return std::make_shared<BackwardPass<typename decltype(types)::Data>>(work, std::move(call));
  });
}

}  // namespace gluon_syncbn::cpu

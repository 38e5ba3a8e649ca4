#include "cpu/backend.h"

#include <memory>
#include <utility>

#include "cpu/channel_math.h"
#include "cpu/kernels.h"
#include "cpu/passes.h"

namespace gluon_syncbn {
namespace {

class CpuBackend : public Backend {
 public:
  std::shared_ptr<DevicePass> forward(Forward pass) override {
    return pass_on_host(std::move(pass));
  }

  std::shared_ptr<DevicePass> backward(Backward pass) override {
    if (pass.inplace) require_invertible(pass);
    return pass_on_host(std::move(pass));
  }

  StatisticsPtr running_statistics(const Data& data, const void* running_mean,
                                   const void* running_variance, double eps) override {
    return running_statistics_on_host(data, running_mean, running_variance, eps);
  }

  void inference(Normalization pass, const StatisticsPtr& statistics) override {
    if (pass.y) {
      const auto normalization =
          normalization_of(pass.data, all_channels(pass.data), HostStatistics::of(*statistics),
                           pass.gamma, pass.beta, pass.activation);
      dispatch(pass.data.dtype, [&](auto types) {
        using T = typename decltype(types)::Data;
        cpu::normalize(static_cast<const T*>(pass.x), pass.data.layout, normalization, pass.write,
                       static_cast<T*>(pass.y), static_cast<const T*>(pass.shortcut));
      });
    }
    pass.done("");
  }
};

}  // namespace

const std::shared_ptr<Backend>& cpu_backend() {
  static const std::shared_ptr<Backend>& backend =
      *new std::shared_ptr<Backend>(std::make_shared<CpuBackend>());
  return backend;
}

}  // namespace gluon_syncbn

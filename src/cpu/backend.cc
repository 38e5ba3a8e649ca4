#include "cpu/backend.h"

#include <utility>

#include "cpu/channel_math.h"
#include "cpu/passes.h"

namespace gluon_syncbn::cpu {
namespace {

class CpuBackend : public Backend {
 public:
  std::shared_ptr<DevicePass> forward(const Forward& work, std::shared_ptr<Call> call) override {
    return forward_pass(work, std::move(call));
  }

  std::shared_ptr<DevicePass> backward(const Backward& work, std::shared_ptr<Call> call) override {
    return backward_pass(work, std::move(call));
  }

  StatisticsPtr running_statistics(const Data& data, const void* running_mean,
                                   const void* running_variance, double eps) override {
    return running_statistics_on_host(data, running_mean, running_variance, eps);
  }

  void inference(const Forward& work, const StatisticsPtr& statistics,
                 std::shared_ptr<Call> call) override {
    cpu::inference(work, *statistics);
    call->complete("");
  }
};

}  // namespace

const std::shared_ptr<Backend>& backend() {
  static const std::shared_ptr<Backend>& backend =
      *new std::shared_ptr<Backend>(std::make_shared<CpuBackend>());
  return backend;
}

}  // namespace gluon_syncbn::cpu

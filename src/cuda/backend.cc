#include "cuda/backend.h"

#include <string>
#include <utility>

#include "common/error.h"
#include "cuda/gpu.h"
#include "cuda/normalization.h"
#include "cuda/passes.h"
#include "cuda/statistics.h"

namespace gluon_syncbn::cuda {
namespace {

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(Gpu* gpu) : gpu_(gpu) {}

  std::shared_ptr<DevicePass> forward(Forward pass) override {
    return pass_on_gpu(gpu_, std::move(pass));
  }

  std::shared_ptr<DevicePass> backward(Backward pass) override {
    return pass_on_gpu(gpu_, std::move(pass));
  }

  StatisticsPtr running_statistics(const Data& data, const void* running_mean,
                                   const void* running_variance, double) override {
    const auto statistics = std::make_shared<GpuStatistics>(gpu_, data);
    statistics->running_mean = running_mean;
    statistics->running_variance = running_variance;
    return statistics;
  }

  void inference(Normalization pass, const StatisticsPtr& statistics) override {
    StreamWorkspace workspace(gpu_);
    launch_normalization(gpu_, pass, GpuStatistics::of(*statistics), {}, nullptr, &workspace);
    gpu_->when_done(std::move(pass.done));
  }

 private:
  Gpu* const gpu_;
};

}  // namespace

std::shared_ptr<Backend> backend_of(int index, const std::string& layer) {
  try {
    return std::make_shared<CudaBackend>(&Gpu::of(index));
  } catch (const Error& error) {
    throw Error(layer + ": " + error.what());
  }
}

}  // namespace gluon_syncbn::cuda

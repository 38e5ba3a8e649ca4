// One training step of a layer for scripts/check_gpu_torch.py: arrays are those of another library.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/cuda/backend_cuda.h"

using namespace gluon_syncbn;

namespace {

/// Waits until every context has finished.
class Finishes {
 public:
  void wait_for(const std::vector<std::shared_ptr<Backend>>& backends) {
    for (const auto& backend : backends) {
      backend->finish([this](const std::string& error) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!error.empty()) error_ = error;
        ++finished_;
        changed_.notify_all();
      });
    }
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return finished_ == backends.size(); });
    if (!error_.empty()) throw std::runtime_error(error_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t finished_ = 0;
  std::string error_;
};

template <class Part>
Part merge(const std::vector<Part>& parts) {
  std::vector<const Part*> pointers;
  for (const Part& part : parts) pointers.push_back(&part);
  return Part::merge(pointers);
}

}  // namespace

/// Arrays of one context, in memory of its GPU. All but x, dy, y and dx have one element per
/// channel.
struct GpuStepContext {
  std::int64_t outer;
  const void* x;
  const void* dy;
  void* y;
  void* dx;
  const void* gamma;
  const void* beta;
  void* running_mean;
  void* running_variance;
  void* gamma_gradient;
  void* beta_gradient;
};

/// Returns nullptr when all is done, or what went wrong. `element` counts as Element does.
extern "C" __attribute__((visibility("default"))) const char* gpu_step(
    int number, const GpuStepContext* contexts, int element, std::int64_t channels,
    std::int64_t inner, double eps, double momentum) {
  static std::string error;
  try {
    std::vector<std::shared_ptr<Backend>> backends;
    std::vector<Backend::Data> data;
    std::vector<Moments> moments;
    for (int i = 0; i < number; ++i) {
      backends.push_back(cuda::backend_of(i, "gpu_step"));
      data.push_back({static_cast<Element>(element), {contexts[i].outer, channels, inner}});
      moments.push_back(backends.back()->moments(data.back(), contexts[i].x));
    }
    const Moments batch = merge(moments);
    std::vector<Backend::StatisticsPtr> statistics;
    std::vector<GradientSums> sums;
    for (std::size_t i = 0; i < backends.size(); ++i) {
      const GpuStepContext& c = contexts[i];
      Backend& backend = *backends[i];
      statistics.push_back(backend.batch_statistics(data[i], batch, eps));
      Backend::RunningStatistics running;
      running.mean = c.running_mean;
      running.variance = c.running_variance;
      running.momentum = momentum;
      backend.move_averages(data[i], *statistics[i], running);
      backend.normalize(data[i], c.x, *statistics[i], c.gamma, c.beta, Write::kAssign, c.y);
      sums.push_back(backend.gradient_sums(data[i], c.dy, c.x, *statistics[i]));
    }
    const GradientSums all = merge(sums);
    for (std::size_t i = 0; i < backends.size(); ++i) {
      const GpuStepContext& c = contexts[i];
      Backend::ParameterGradients gradients;
      gradients.gamma = c.gamma_gradient;
      gradients.beta = c.beta_gradient;
      backends[i]->parameter_gradients(data[i], sums[i], *statistics[i], gradients);
      backends[i]->input_gradient(data[i], c.dy, c.x, *statistics[i], &all, batch.count, c.gamma,
                                  Write::kAssign, c.dx);
    }
    Finishes().wait_for(backends);
    return nullptr;
  } catch (const std::exception& caught) {
    error = caught.what();
    return error.c_str();
  }
}

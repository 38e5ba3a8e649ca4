// Training steps of one layer for Python programs without MXNet (scripts/gpu_benchmarks/bridge.py):
// the arrays are those of another library.

#include "bridge/gpu_bridge.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "bridge/device.h"
#include "common/error_of.h"
#include "cuda/backend.h"

using namespace gluon_syncbn;

namespace {

constexpr const char* kLayer = "gpu_bridge";

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

struct GpuBridgeRound {
  struct Device {
    std::shared_ptr<Backend> backend;
    GpuBridgeContext arrays;
    Backend::Data data;
    Backend::StatisticsPtr statistics;
  };
  std::vector<Device> devices;
  double eps;
  double momentum;
  std::vector<Moments> own_moments;
  Moments batch;
  std::vector<GradientSums> own_sums;
  GradientSums all_sums;

  void moments() {
    own_moments.clear();
    for (const Device& d : devices) {
      own_moments.push_back(d.backend->moments(d.data, d.arrays.x));
    }
    batch = merge(own_moments);
  }
  void normalize() {
    for (Device& d : devices) {
      d.statistics = d.backend->batch_statistics(d.data, batch, eps);
      Backend::RunningStatistics running;
      running.mean = d.arrays.running_mean;
      running.variance = d.arrays.running_variance;
      running.momentum = momentum;
      d.backend->normalize(d.data, d.arrays.x, *d.statistics, d.arrays.gamma, d.arrays.beta,
                           WriteMode::kAssign, d.arrays.y, {running, {d.statistics}});
    }
  }
  void gradient_sums() {
    own_sums.clear();
    for (const Device& d : devices) {
      own_sums.push_back(d.backend->gradient_sums(d.data, d.arrays.dy, d.arrays.x, *d.statistics));
    }
    all_sums = merge(own_sums);
  }
  void input_gradient() {
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const Device& d = devices[i];
      Backend::Gradients gradients;
      gradients.gamma = d.arrays.gamma_gradient;
      gradients.beta = d.arrays.beta_gradient;
      gradients.data = d.arrays.dx;
      d.backend->gradients(d.data, d.arrays.dy, d.arrays.x, *d.statistics, own_sums[i], &all_sums,
                           batch.count, d.arrays.gamma, gradients);
    }
  }
};

const char* gpu_bridge_device(int context, GpuBridgeDevice* device) {
  return error_of([&] { *device = bridge::device_of(context); });
}

const char* gpu_bridge_finish(int contexts) {
  return error_of([contexts] {
    std::vector<std::shared_ptr<Backend>> backends;
    for (int i = 0; i < contexts; ++i) backends.push_back(cuda::backend_of(i, kLayer));
    Finishes().wait_for(backends);
  });
}

const char* gpu_bridge_open(int number, const GpuBridgeContext* contexts, int element,
                            std::int64_t channels, std::int64_t inner, double eps, double momentum,
                            GpuBridgeRound** round) {
  return error_of([&] {
    auto opened = std::make_unique<GpuBridgeRound>();
    opened->eps = eps;
    opened->momentum = momentum;
    for (int i = 0; i < number; ++i) {
      opened->devices.push_back(
          {cuda::backend_of(i, kLayer),
           contexts[i],
           {static_cast<DType>(element), {contexts[i].outer, channels, inner}},
           nullptr});
    }
    *round = opened.release();
  });
}

const char* gpu_bridge_moments(GpuBridgeRound* round) {
  return error_of([round] { round->moments(); });
}
const char* gpu_bridge_normalize(GpuBridgeRound* round) {
  return error_of([round] { round->normalize(); });
}
const char* gpu_bridge_gradient_sums(GpuBridgeRound* round) {
  return error_of([round] { round->gradient_sums(); });
}
const char* gpu_bridge_input_gradient(GpuBridgeRound* round) {
  return error_of([round] { round->input_gradient(); });
}

void gpu_bridge_close(GpuBridgeRound* round) { delete round; }

#ifndef GLUON_SYNCBN_CUDA_NORMALIZATION_H_
#define GLUON_SYNCBN_CUDA_NORMALIZATION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/dtype.h"
#include "cuda/gpu.h"
#include "cuda/kernels/phases.h"
#include "cuda/statistics.h"
#include "norm/backend.h"

namespace gluon_syncbn::cuda {

/// Room that is given back when the work that uses it is on the stream: what uses it next comes
/// behind that.
class StreamWorkspace : public Workspace {
 public:
  explicit StreamWorkspace(Gpu* gpu) : gpu_(gpu) {}

  double* doubles(std::size_t number) override {
    taken_.push_back(gpu_->memory(number));
    return static_cast<double*>(taken_.back()->data());
  }
  std::uint32_t* counters(std::size_t number) override { return gpu_->counters(number); }
  Claims claims(std::size_t number) override { return gpu_->claims(number); }

 private:
  Gpu* gpu_;
  std::vector<Pool<Memory>::Lease> taken_;
};

template <class P>
Averages<P> averages_of(Gpu* gpu, const Backend::RunningStatistics& running,
                        std::int64_t channels) {
  return {static_cast<P*>(running.mean),
          static_cast<P*>(running.variance),
          running.momentum.value_or(0),
          static_cast<P*>(running.num_batches),
          gpu->counters(1),
          channels};
}

/// Puts the kernel on the stream that computes `statistics`, from `messages` or, if there are none,
/// from the running statistics, and then the output. `running` is null if they do not move.
inline void launch_normalization(Gpu* gpu, const Backend::Normalization& pass,
                                 const GpuStatistics& statistics, const Messages& messages,
                                 const Backend::RunningStatistics* running,
                                 StreamWorkspace* workspace) {
  dispatch(pass.data.dtype, [&](auto types) {
    using T = typename decltype(types)::Data;
    using P = typename decltype(types)::Parameter;
    ForwardSource<P> source{};
    source.messages = messages;
    source.running_mean = static_cast<const P*>(statistics.running_mean);
    source.running_variance = static_cast<const P*>(statistics.running_variance);
    source.channels = statistics.channels;
    source.eps = pass.eps;
    source.statistics = statistics.arrays();
    if (running) source.averages = averages_of<P>(gpu, *running, statistics.channels);
    source.gamma = static_cast<const P*>(pass.gamma);
    source.beta = static_cast<const P*>(pass.beta);
    cuda::normalize(
        static_cast<const T*>(pass.x), pass.data.layout, source, pass.write,
        static_cast<T*>(pass.y), workspace, gpu->stream(),
        {pass.activation, static_cast<const T*>(pass.shortcut), statistics.normalizations<P>()});
  });
}

}  // namespace gluon_syncbn::cuda

#endif  // GLUON_SYNCBN_CUDA_NORMALIZATION_H_

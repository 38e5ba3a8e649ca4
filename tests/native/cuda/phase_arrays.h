#ifndef GLUON_SYNCBN_TESTS_NATIVE_CUDA_PHASE_ARRAYS_H_
#define GLUON_SYNCBN_TESTS_NATIVE_CUDA_PHASE_ARRAYS_H_

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/layout.h"
#include "common/write_mode.h"
#include "cuda/device_array.h"
#include "cuda/gpu.h"
#include "cuda/kernels/phases.h"
#include "cuda/needs_gpu.h"
#include "norm/activation.h"

namespace gluon_syncbn::tests {

/// For kernels that one stream runs.
class Workspace : public cuda::Workspace {
 public:
  explicit Workspace(cuda::Stream* stream) : stream_(stream) {}

  double* doubles(std::size_t number) override {
    rooms_.push_back(std::make_unique<cuda::Memory>(cuda::Memory::Place::kDevice,
                                                    stream_->ordinal(), number * sizeof(double)));
    return static_cast<double*>(rooms_.back()->data());
  }
  std::uint32_t* counters(std::size_t number) override {
    return static_cast<std::uint32_t*>(
        counters_.at_least(number * sizeof(std::uint32_t), stream_, allocate_));
  }
  cuda::Claims claims(std::size_t number) override {
    void* states = claims_.at_least(number * sizeof(cuda::Claims::State), stream_, allocate_);
    return {static_cast<cuda::Claims::State*>(states), ++last_claim_};
  }

 private:
  cuda::Stream* stream_;
  const cuda::ZeroedMemory::Allocate allocate_ = [this](std::size_t bytes) {
    return std::make_unique<cuda::Memory>(cuda::Memory::Place::kDevice, stream_->ordinal(), bytes);
  };
  std::vector<std::unique_ptr<cuda::Memory>> rooms_;
  cuda::ZeroedMemory counters_;
  cuda::ZeroedMemory claims_;
  cuda::Claims::State last_claim_ = 0;
};

template <class R>
std::vector<R> as(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

/// kernel(write, out) for an array on the GPU that begins as `out` and comes back in it.
template <class T, class Kernel>
auto on_device(cuda::Stream* stream, std::size_t offset, const Kernel& kernel) {
  return [=](WriteMode write, std::vector<T>* out) {
    const DeviceArray<T> array(stream, *out, offset);
    kernel(write, array.data());
    *out = array.download();
  };
}

/// What the kernels of a forward pass take, for one device whose batch has these moments.
template <class R>
struct ForwardArrays {
  ForwardArrays(cuda::Stream* stream, const std::vector<double>& message_in, double count,
                const std::vector<R>& gamma_in, const std::vector<R>& beta_in)
      : message(stream, message_in),
        statistics(stream, std::vector<double>(3 * gamma_in.size(), -1)),
        gamma(stream, gamma_in),
        beta(stream, beta_in) {
    const auto channels = static_cast<std::int64_t>(gamma_in.size());
    source.messages.values[0] = message.data();
    source.messages.counts[0] = static_cast<std::int64_t>(count);
    source.messages.size = 1;
    source.channels = channels;
    source.eps = 0.125;
    source.statistics = {statistics.data(), statistics.data() + channels,
                         statistics.data() + 2 * channels};
    source.gamma = gamma.data();
    source.beta = beta.data();
  }

  DeviceArray<double> message;
  DeviceArray<double> statistics;
  DeviceArray<R> gamma;
  DeviceArray<R> beta;
  cuda::ForwardSource<R> source{};
};

/// Runs and columns, some that vectors do not divide, in one chunk and in several.
inline const Layout kLayouts[] = {
    {5, 6, 1},   {3, 6, 7}, {2, 6, 49},   {40, 64, 1}, {1, 3, 2049}, {33, 5, 17},  {300, 1, 1},
    {9, 257, 1}, {1, 1, 1}, {3, 2, 9973}, {2, 8, 64},  {700, 9, 5},  {4000, 3, 1}, {8, 64, 1024}};

/// Calls try_case(Case*) with a Case(stream, layout, activation, seed) for each of these layouts
/// and each activation, or for some where that takes long.
template <class Case, class Activations, class Try>
void for_each_case(const Activations& activations, const Try& try_case) {
  cuda::Stream stream(0);
  std::uint32_t seed = 0;
  for (const Layout& layout : kLayouts) {
    if (layout.count() * layout.channels > 2 * kMostElements) continue;
    for (const Activation& activation : activations) {
      if (++seed % kEvery != 0) continue;
      CAPTURE(layout.outer);
      CAPTURE(layout.channels);
      CAPTURE(layout.inner);
      CAPTURE(static_cast<int>(activation.type));
      CAPTURE(seed);
      Case given(&stream, layout, activation, seed);
      try_case(&given);
    }
  }
}

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_CUDA_PHASE_ARRAYS_H_

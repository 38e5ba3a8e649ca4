#ifndef GLUON_SYNCBN_TESTS_NATIVE_CUDA_PHASE_ARRAYS_H_
#define GLUON_SYNCBN_TESTS_NATIVE_CUDA_PHASE_ARRAYS_H_

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "common/layout.h"
#include "common/write_mode.h"
#include "cuda/device_array.h"
#include "cuda/gpu.h"
#include "cuda/kernels/phases.h"
#include "cuda/needs_gpu.h"
#include "support/layouts.h"
#include "support/values.h"

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

/// Some arrays do not begin at a multiple of 16 bytes.
inline std::size_t offset_of(std::uint32_t number) { return number % 3 ? 0 : number / 3 % 8; }

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
    source.messages.add(message.data(), static_cast<std::int64_t>(count));
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

/// That run() returns a tuple of arrays with the same bits in every order of the threads.
template <class Run>
void check_same_in_all_orders(const Run& run) {
  const auto before = run();
  for (const auto order : kOtherOrders) {
    const InOrder in_order(order);
    std::apply(
        [&](const auto&... arrays) {
          std::apply([&](const auto&... others) { CHECK((same_bits(arrays, others) && ...)); },
                     before);
        },
        run());
  }
}

/// Some of them where that takes long.
inline std::vector<Layout> gpu_layouts() {
  auto all = layouts_of({1, 3, 7, 15, 16, 17, 49, 225, 3600}, {1, 2, 5, 33}, kMostElements);
  // Several chunks, blocks that are full and not, columns that vectors do not divide.
  for (const Layout& large :
       {Layout{2, 1, 45000}, Layout{3, 2, 9973}, Layout{20000, 3, 1}, Layout{3000, 65, 1},
        Layout{1500, 64, 1}, Layout{700, 9, 5}, Layout{230000, 1, 1}}) {
    if (large.count() * large.channels <= 8 * kMostElements) all.push_back(large);
  }
  std::vector<Layout> some;
  for (std::size_t i = 0; i < all.size(); i += kEvery) some.push_back(all[i]);
  return some;
}

}  // namespace gluon_syncbn::tests

#endif  // GLUON_SYNCBN_TESTS_NATIVE_CUDA_PHASE_ARRAYS_H_

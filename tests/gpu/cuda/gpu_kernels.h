#pragma once

// The kernels on a GPU (cuda_tests) or run in lockstep on the CPU (native_tests).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "common/layout.h"
#include "cuda/gpu.h"
#include "cuda/kernels/phases.h"
#include "cuda/needs_gpu.h"
#include "norm/activation.h"
#include "norm/coefficients.h"
#include "norm/per_channel.h"
#include "norm/variants.h"
#include "support/array.h"
#include "support/arrays.h"
#include "support/kernel_tests.h"
#include "support/layer_case.h"
#include "support/values.h"

namespace gluon_syncbn::tests {

/// The memory lives as long as copies of the launcher.
inline cuda::Launcher launcher_of(cuda::Stream* stream) {
  const auto rooms = std::make_shared<std::vector<std::unique_ptr<cuda::Memory>>>();
  return {stream, [stream, rooms](std::size_t doubles) {
            rooms->push_back(std::make_unique<cuda::Memory>(
                cuda::Memory::Place::kDevice, stream->ordinal(), doubles * sizeof(double)));
            return static_cast<double*>(rooms->back()->data());
          }};
}

/// Some arrays do not begin at a multiple of 16 bytes.
inline std::size_t offset_of(std::uint32_t number) { return number % 3 ? 0 : number / 3 % 8; }

inline std::vector<double> message_of(std::vector<double> first,
                                      const std::vector<double>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// What the kernels compute for a case on one device; see kernel_tests.h.
template <class T>
class GpuPhases {
 public:
  using R = Real<T>;

  GpuPhases(cuda::Stream* stream, const LayerCase<T>& given, std::uint32_t number)
      : given_(given),
        offset_(offset_of(number)),
        // Some arrays lie alike within 16 bytes, others do not.
        other_offset_(number % 5 == 1 ? 1 : offset_),
        stream_(stream),
        launcher_(launcher_of(stream)),
        moments_(stream, message_of(given.means, given.m2)),
        statistics_(stream, std::vector<double>(2 * given.channels(), -1)),
        gamma_(stream, given.gamma),
        beta_(stream, given.beta),
        averages_(stream, std::vector<R>(2 * given.channels() + 1)),
        normalizations_(stream, std::vector<Affine<R>>(given.channels())),
        gamma_gradient_(stream, given.gamma),
        beta_gradient_(stream, given.gamma),
        inv_std_(stream, given.inv_stds),
        mean_(stream, given.means),
        message_(stream, message_of(given.sum_dz, given.sum_dz_centered)) {
    std::vector<T> y(given.x.elements.size());
    normalize(WriteMode::kAssign, false, &y);  // leaves what By::kInput needs
  }

  void normalize(WriteMode write, bool adds_shortcut, std::vector<T>* y) {
    const Array<T> input(stream_, given_.x.elements, offset_), output(stream_, *y, offset_);
    const Array<T> shortcut(stream_, given_.y.elements, other_offset_);
    Forward work;
    work.kind = kind();
    work.x = input.data();
    work.eps = given_.kEps;
    work.gamma = gamma();
    work.beta = beta_.data();
    work.activation = given_.activation;
    if (adds_shortcut) work.shortcut = shortcut.data();
    work.write = write;
    work.y = output.data();
    work.running = {averages_.data(), averages_.data() + given_.layout.channels, std::nullopt,
                    averages_.data() + 2 * given_.layout.channels};
    cuda::Messages messages{};
    messages.add(moments_.data(), static_cast<std::int64_t>(given_.kCount));
    launch_outputs(work, messages,
                   saved(statistics_.data(), statistics_.data() + given_.layout.channels),
                   launcher_);
    *y = output.values();
  }
  std::vector<double> gradient_sums() {
    const Array<double> found(stream_, std::vector<double>(2 * given_.channels(), -1));
    with_backward([&](const Backward& work) {
      cuda::launch_sums(work, {found.data(), given_.layout.channels}, launcher_);
    });
    return found.values();
  }
  void input_gradient(WriteMode write, std::vector<T>* dx) {
    const Array<T> array(stream_, *dx, offset_);
    gradients(write, array.data());
    *dx = array.values();
  }
  void shortcut_gradient(WriteMode write, std::vector<T>* dz) {
    const Array<T> array(stream_, *dz, other_offset_);
    gradients(WriteMode::kAssign, nullptr, write, array.data());
    *dz = array.values();
  }
  /// Both, in arrays on the GPU.
  void gradients(WriteMode write, T* dx, WriteMode write_shortcut = WriteMode::kAssign,
                 T* dshortcut = nullptr) {
    with_backward([&](Backward work) {
      work.gradients = {false,
                        WriteMode::kAssign,
                        gamma_gradient_.data(),
                        WriteMode::kAdd,
                        beta_gradient_.data(),
                        write,
                        dx,
                        write_shortcut,
                        dshortcut};
      cuda::Messages messages{};
      if (given_.of_batch) messages.add(message_.data(), given_.layout.count());
      launch_outputs(work, messages, message_.data(), nullptr, launcher_);
    });
  }

  /// Mean and inverse deviation; running mean and variance, which are averages over all
  /// batches, and the number of these.
  std::vector<double> kept() const {
    const auto averages = averages_.values();
    return message_of(statistics_.values(), {averages.begin(), averages.end()});
  }
  std::vector<R> gamma_gradient() const { return gamma_gradient_.values(); }
  std::vector<R> beta_gradient() const { return beta_gradient_.values(); }

 private:
  /// Calls run(work) with what is on the GPU.
  template <class Run>
  void with_backward(const Run& run) {
    const bool in_place = given_.in_place();
    const Array<T> gradient(stream_, given_.dy.elements, offset_);
    const Array<T> input(stream_, given_.x.elements, offset_);
    const Array<T> output(stream_, given_.y.elements, in_place ? offset_ : other_offset_);
    Backward work;
    work.kind = kind();
    work.dy = gradient.data();
    work.dz_from = given_.dz_from();
    if (!in_place) work.x = input.data();
    work.saved = saved(mean_.data(), inv_std_.data());
    if (given_.of_batch) work.saved.count = static_cast<std::int64_t>(given_.kCount);
    work.gamma = gamma();
    work.activation = given_.activation;
    work.beta = beta_.data();
    if (reads_of(work.dz_from).output) work.y = output.data();
    run(work);
    stream_->synchronize();
  }
  ArrayKind kind() const { return {Type<T>::kDType, given_.layout}; }
  const R* gamma() const { return given_.fix_gamma ? nullptr : gamma_.data(); }
  Saved saved(double* mean, double* inv_std) const {
    const std::shared_ptr<void> kept_here;
    return {{kept_here, mean}, {kept_here, inv_std}, {kept_here, normalizations_.data()}, 0};
  }

  const LayerCase<T>& given_;
  const std::size_t offset_, other_offset_;
  cuda::Stream* const stream_;
  const cuda::Launcher launcher_;
  const Array<double> moments_, statistics_;
  const Array<R> gamma_, beta_, averages_;
  const Array<Affine<R>> normalizations_;
  const Array<R> gamma_gradient_, beta_gradient_;
  const Array<double> inv_std_, mean_, message_;
};

/// The kernels on one stream.
template <class T>
class GpuKernels {
 public:
  using Element = T;
  // Sums of up to 32 deviations from a pivot are rounded.
  static constexpr long double kUnitOfMoments = Type<T>::kUnit;
  static constexpr long double kUnitOfSums = 4 * Type<T>::kUnit;
  static constexpr long double kUnitOfEqualSums = 2 * kUnitOfSums;
  static constexpr bool kExactMeans = true;
  static inline const std::int64_t kMostElements = tests::kMostElements;

  /// Some of them where that takes long.
  static std::vector<Layout> layouts() {
    auto all = layouts_of({1, 3, 7, 12, 15, 16, 17, 49, 225, 3600}, {1, 2, 5, 33}, kMostElements);
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
  std::vector<double> moments(const Data<T>& x, std::uint32_t number) {
    const cuda::Launcher launcher = launcher_of(&stream_);
    const Array<T> on_device(&stream_, x.elements, offset_of(number));
    const auto channels = static_cast<std::size_t>(x.layout.channels);
    const Array<double> message(&stream_, std::vector<double>(2 * channels, -1));
    Forward work;
    work.kind = {Type<T>::kDType, x.layout};
    work.x = on_device.data();
    cuda::launch_sums(work, {message.data(), x.layout.channels}, launcher);
    return message.values();
  }
  GpuPhases<T> phases(const LayerCase<T>& given, std::uint32_t number) {
    return {&stream_, given, number};
  }
  template <class Check>
  static void in_all_orders(std::uint32_t /*most*/, const Check& check) {
    for (const auto order : kOtherOrders) {
      const InOrder in_order(order);
      check(5);  // in a GPU, bits depend on how arrays lie
    }
  }

  cuda::Stream* stream() { return &stream_; }

 private:
  static int first_gpu() {
    need_gpu();
    return 0;
  }

  cuda::Stream stream_{first_gpu()};
};

}  // namespace gluon_syncbn::tests
